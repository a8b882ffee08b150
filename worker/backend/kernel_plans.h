// SPDX-License-Identifier: Apache-2.0
// The choice among several kernels that compute one shape and sum in different orders.
#pragma once

#include "absl/status/status.h"
#include "worker/backend/ops.h"
#include "worker/backend/plan_cache.h"

namespace takt::backend {

// Belongs to a BackendFactory and lives as long as it does. Thread-safe.
class KernelPlans {
 public:
  virtual ~KernelPlans() = default;

  // Returns the choices made so far, for all of the factory's backends.
  virtual PlanCache& plans() = 0;

  // Makes the choice that Prepare or Run would make for the first op of this shape. It does nothing
  // for ops that need no choice or have one. Only the op's sizes and the alignment of its pointers
  // matter. Blocks: while candidates are timed.  Errors: as Run.
  virtual absl::Status Choose(const Op& op) = 0;

  // Frees what choices used: handles of libraries, streams, scratch memory. A later choice
  // allocates it again.  Blocks: until the device has done everything.
  virtual void EndChoices() {}
};

}  // namespace takt::backend
