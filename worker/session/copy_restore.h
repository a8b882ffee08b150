// SPDX-License-Identifier: Apache-2.0
// Lets the ranks of a generation agree, through its rendezvous, on the step that they resume from
// by the copies in their workers' memory, and brings each rank its state over the data plane.
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "common/control/assignment.h"
#include "common/model/model.h"
#include "worker/checkpoint/state_copy.h"
#include "worker/session/resume.h"
#include "worker/train/parameter_store.h"
#include "worker/transport/transport.h"

namespace takt::session {

// Returns which part of layers the model is for, and how many there are, where ranks split layers
// or share experts; else 0 and 1.
inline int PartOfLayers(const model::Model& model) {
  return model.experts.shares() ? model.experts.index : model.tensor.index;
}
inline int NumPartsOfLayers(const model::Model& model) {
  return model.experts.shares() ? model.experts.size : model.tensor.size;
}

// All pointers are borrowed for the call.
struct CopyRestoreOptions {
  const control::Assignment* assignment = nullptr;  // `copies` and `saved` say which steps may be
  const model::Model* model = nullptr;
  RankMeeting meeting;
  transport::Transport* transport = nullptr;  // of host memory
  std::string kernel_plan;                    // that this worker knows; empty: it knows none
};

struct RestoredCopies {
  StepId step;
  std::string kernel_plan;  // on rank 0: that of the job; empty: no rank knows one
};

// Fills `store` from `held`, the copies of this worker, and from those of other ranks. Returns
// that step; nullopt on all ranks, with `store` as it was, if the copies of all ranks together make
// no step whole. Wrong data from a peer counts as not held. Blocks: until all ranks have what they
// need. Errors: kInvalidArgument (FieldError) on all ranks if the job needs its copies and there is
// no such step. kUnavailable: another rank is in trouble. Others: those of the data plane.
absl::StatusOr<std::optional<RestoredCopies>> RestoreFromCopies(
    const CopyRestoreOptions& options, const worker_checkpoint::StateCopies& held,
    train::ParameterStore& store);

}  // namespace takt::session
