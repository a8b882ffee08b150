// SPDX-License-Identifier: Apache-2.0
// The curves of a job's training for TensorBoard, kept by the worker of its rank 0.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/control/assignment.h"
#include "common/control/reports.h"
#include "worker/checkpoint/file_system.h"
#include "worker/session/rank_runner.h"
#include "worker/session/trace_sampler.h"

namespace takt::tensorboard {
class EventLog;
}

namespace takt::session {

// One caller at a time.
class Curves final {
 public:
  // Null: the job wants none, or this is another rank.  resumed: the step that training goes on
  // after.  root: that `logging.tensorboard` may not leave; the checkpoint root.  Errors:
  // kInvalidArgument (FieldError): outside the root, or it cannot be written.
  static absl::StatusOr<std::unique_ptr<Curves>> Open(const control::Assignment& assignment,
                                                      StepId resumed, const std::string& root,
                                                      checkpoint::FileSystem& files,
                                                      const Clock& clock);
  ~Curves();

  // Never blocks. Of very short steps only some.
  void Add(const control::RankStepReport& report);

 private:
  Curves(std::unique_ptr<tensorboard::EventLog> log, StepId last_step, const Clock& clock);

  const std::unique_ptr<tensorboard::EventLog> log_;
  const StepId last_step_;
  const Clock& clock_;
  TraceSampler sampler_;
};

}  // namespace takt::session
