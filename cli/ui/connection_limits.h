// SPDX-License-Identifier: Apache-2.0
// Limits what the peers of an HTTP server may use.
#pragma once

#include <cstddef>

#include "absl/time/time.h"

namespace takt::cli {

struct ConnectionLimits {
  std::size_t connections = 64;                 // handled at a time; the others get a 503
  std::size_t head_bytes = 16u << 10;           // of a request
  absl::Duration head_time = absl::Seconds(5);  // until all of the head is there
};

}  // namespace takt::cli
