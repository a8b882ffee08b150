// SPDX-License-Identifier: Apache-2.0
// Ops that are recorded once and replayed many times, with one call of the host for all instead of
// one an op.
#pragma once

#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace takt::backend {

// Ops with their pointers and numbers as recorded. It belongs to one backend, must not outlive it,
// and may end while its replay is under way. Thread: its backend's.
class Recording {
 public:
  virtual ~Recording() = default;

  // Does what Run of each op would do now. Errors: those of Run; kFailedPrecondition (memory that
  // the backend keeps for ops has moved since: nothing was done, and this recording can never run
  // again).
  virtual absl::Status Replay() = 0;
};

// Thread: its backend's.
class Recorder {
 public:
  virtual ~Recorder() = default;

  // Records the ops that `ops` gives to Run of this backend, and does none of them. `ops` must give
  // the backend nothing but ops, and ops of the same shapes must have been prepared for or run
  // before: only then has the backend allocated memory and chosen kernels for them. Errors: those
  // of `ops`; kFailedPrecondition (it asked for what cannot be recorded). After an error the
  // backend is as before.
  virtual absl::StatusOr<std::unique_ptr<Recording>> Record(
      absl::FunctionRef<absl::Status()> ops) = 0;
};

}  // namespace takt::backend
