// SPDX-License-Identifier: Apache-2.0
// Kernels that are chosen: where several of them compute one shape, and sum in different orders.
#pragma once

#include "absl/status/status.h"
#include "worker/backend/ops.h"

namespace takt::backend {

namespace cuda {
class PlanCache;
}

// Of a BackendFactory, which it lives as long as. Thread-safe.
class KernelPlans {
 public:
  virtual ~KernelPlans() = default;

  // What was chosen so far, for all of the factory's backends.
  virtual cuda::PlanCache& plans() = 0;

  // What Prepare or Run chooses for the first op of this shape, ahead of them: ops that need
  // no choice, or have one, are passed over. op: only sizes, and the alignment of pointers, count.
  // Blocks: while candidates are timed.  Errors: as Run.
  virtual absl::Status Choose(const Op& op) = 0;
};

}  // namespace takt::backend
