// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>

#include "absl/status/status.h"

namespace takt::worker_checkpoint {

// Runs task(0) to task(count - 1), begun in this order, on `threads` threads, one of which is the
// caller's. After an error no further task begins. Of several errors, returns the one with the
// smallest index.
absl::Status RunOnThreads(int threads, std::size_t count,
                          const std::function<absl::Status(std::size_t)>& task);

}  // namespace takt::worker_checkpoint
