// SPDX-License-Identifier: Apache-2.0
// The curves of a job's training for TensorBoard. The worker of the job's rank 0 keeps them.
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
  // Returns null if the job wants no curves or this is another rank. resumed: the step after which
  // training goes on. root: the checkpoint root, which `logging.tensorboard` may not leave.
  // Errors: kInvalidArgument (FieldError) if the directory is outside the root or cannot be
  // written.
  static absl::StatusOr<std::unique_ptr<Curves>> Open(const control::Assignment& assignment,
                                                      StepId resumed, const std::string& root,
                                                      worker_checkpoint::FileSystem& files,
                                                      const Clock& clock);
  ~Curves();

  // Adds the points of a step. When steps are very short, it adds only some of them. Never blocks.
  void Add(const control::RankStepReport& report);

 private:
  Curves(std::unique_ptr<tensorboard::EventLog> log, StepId last_step, const Clock& clock);

  const std::unique_ptr<tensorboard::EventLog> log_;
  const StepId last_step_;
  const Clock& clock_;
  TraceSampler sampler_;
};

}  // namespace takt::session
