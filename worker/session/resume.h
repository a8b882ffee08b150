// SPDX-License-Identifier: Apache-2.0
// Lets the ranks of a generation agree, through its rendezvous, on the checkpoint to go on from.
// Rank 0 proposes checkpoints, newest first, and every rank tries to load. If one rank cannot, rank
// 0 proposes the next older one.
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

// How one rank meets the other ranks of its generation.
struct RankMeeting {
  transport::Rendezvous* rendezvous = nullptr;  // borrowed
  Rank rank;
  int num_ranks = 1;
};

// Blocks until all ranks of the generation have called it with this name, for an hour at most. A
// rank that dies meanwhile is noticed in another way.
absl::Status MeetAll(const RankMeeting& meeting, const std::string& name);

// Checks that all ranks see the same files in `directory`, which must exist. Rank 0 writes a file
// with random contents, the others read it, and rank 0 removes it. name: the file's; no other job
// may use it.
// Blocks: until all ranks have looked. Errors: kFailedPrecondition names a rank that does not see
// it.
absl::Status CheckShared(const RankMeeting& meeting, const std::string& directory,
                         const std::string& name);

struct ResumeOptions {
  const config::JobSpec* job = nullptr;  // borrowed for the call
  std::string directory;                 // where the checkpoints are, absolute
  std::string wanted;                    // "auto", "none" or a step
  StepId at_most;                        // for "auto": the newest step allowed; 0: any
};

// Loads and verifies what this rank needs. It may be called again after an error, with an older
// step.
using LoadStep = std::function<absl::Status(const checkpoint::StepFiles&)>;

// Returns the same on all ranks, except that only rank 0 has notes.
// Blocks: until all ranks have loaded.
// Errors: kInvalidArgument: the job differs from the checkpoint's, or the step that it names does
// not exist. kDataLoss: there are checkpoints and none can be used. The job does not start over by
// itself then.
absl::StatusOr<control::Resumed> AgreeOnResume(const RankMeeting& meeting,
                                               const ResumeOptions& options, const LoadStep& load);

}  // namespace takt::session
