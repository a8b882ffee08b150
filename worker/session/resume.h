// SPDX-License-Identifier: Apache-2.0
// Which checkpoint the ranks of a generation go on from, agreed through its rendezvous: rank 0
// proposes, newest first, every rank tries to load, one that cannot makes it the next older one.
#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/id.h"
#include "common/checkpoint/directory.h"
#include "common/config/job_spec.h"
#include "common/control/attachment.h"
#include "worker/transport/transport.h"

namespace takt::session {

// Of one rank among those of its generation.
struct RankMeeting {
  transport::Rendezvous* rendezvous = nullptr;  // borrowed
  Rank rank;
  int num_ranks = 1;
};

// That all ranks see the same files in `directory`, which must be there: rank 0 writes one with
// chance contents, the others read it, it is removed. `name`: of the file, no other job's.
// Blocks: until all ranks have looked. Errors: kFailedPrecondition: which rank does not see it.
absl::Status CheckShared(const RankMeeting& meeting, const std::string& directory,
                         const std::string& name);

struct ResumeOptions {
  const config::JobSpec* job = nullptr;  // borrowed for the call
  std::string directory;                 // of the checkpoints, absolute
  std::string wanted;                    // "auto", "none" or a step
  StepId at_most;                        // of auto; 0: any
};

// Loads what this rank needs, verified. May be called again after an error, with an older step.
using LoadStep = std::function<absl::Status(const checkpoint::StepFiles&)>;

// Equal on all ranks but for the notes, which rank 0 has.  Blocks: until all ranks have loaded.
// Errors: kInvalidArgument: the job differs from the checkpoint's, or the step that it names is not
// there. kDataLoss: there are checkpoints and none can be used: nobody starts over unasked.
absl::StatusOr<control::Resumed> AgreeOnResume(const RankMeeting& meeting,
                                               const ResumeOptions& options, const LoadStep& load);

}  // namespace takt::session
