// SPDX-License-Identifier: Apache-2.0
// Counts what a rank's products in FP8 could not hold, as metrics.
#pragma once

#include <array>
#include <string>

#include "common/mesh/mesh.h"
#include "common/metrics/registry.h"
#include "worker/backend/fp8.h"

namespace takt::session {

// One caller at a time.
class Fp8Metrics {
 public:
  // Begins at 0: what the counters have of an earlier job is dropped.
  // registry, counters: borrowed for the object's life. The registry's series of the job must not
  // be dropped before this object is destroyed.
  // at: the rank's place in the mesh.
  Fp8Metrics(metrics::Registry& registry, const std::string& job, const mesh::Coordinates& at,
             backend::Fp8Counters& counters);

  // Adds what was counted since the last call. The lanes may count beside it.
  void Record();

 private:
  struct Series {
    prometheus::Counter* overflows = nullptr;
    prometheus::Counter* underflows = nullptr;
  };
  backend::Fp8Counters& counters_;
  std::array<Series, backend::kFp8Operands.size()> series_;  // as kFp8Operands
};

}  // namespace takt::session
