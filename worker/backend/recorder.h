// SPDX-License-Identifier: Apache-2.0
// Ops that are given once and done many times: one call of the host instead of one for each.
#pragma once

#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace takt::backend {

// Ops with the pointers and numbers that they were given. Belongs to one backend, must not outlive
// it, and may end while what it replayed is under way. Thread: its backend's.
class Recording {
 public:
  virtual ~Recording() = default;

  // As if each op were given to Run now.
  // Errors: those of Run; kFailedPrecondition (memory that the backend keeps for ops has moved
  // since: nothing was done, and never will be by this recording).
  virtual absl::Status Replay() = 0;
};

// Thread: its backend's.
class Recorder {
 public:
  virtual ~Recorder() = default;

  // What `ops` gives to Run of this backend, none of which is done. It gives it nothing but ops,
  // and ops of the same shapes were prepared for or run before: it is then that a backend makes
  // memory and chooses kernels.
  // Errors: what `ops` returns; kFailedPrecondition (it asked for what cannot be recorded). The
  // backend is as before, whatever the error.
  virtual absl::StatusOr<std::unique_ptr<Recording>> Record(
      absl::FunctionRef<absl::Status()> ops) = 0;
};

}  // namespace takt::backend
