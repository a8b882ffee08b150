// SPDX-License-Identifier: Apache-2.0
// Lets the ranks of a generation agree, through its rendezvous, on the checkpoint to resume from.
// Rank 0 proposes checkpoints, newest first, and every rank tries to load. If one rank cannot, rank
// 0 proposes the next older one.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
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

// Another rank's objection to what rank 0 proposed.
struct Complaint {
  std::string text;      // empty: no rank has any
  bool trouble = false;  // it is that rank's own trouble
  int count = 0;         // so many ranks have one
};

// The answer of a rank that has trouble of its own begins with this.
inline constexpr std::string_view kTrouble = "! ";

// For rank 0: waits for an answer of every other rank to `key`, for an hour at most. Returns the
// first complaint. Trouble comes before any other.
absl::StatusOr<Complaint> FirstComplaint(const RankMeeting& meeting, const std::string& key);

// For the other ranks: answers `key`. complaint: empty if there is none.
absl::Status Answer(const RankMeeting& meeting, const std::string& key,
                    const std::string& complaint);

// Blocks until all ranks of the generation have called it with this name, for an hour at most. A
// rank that dies meanwhile is noticed in another way.
absl::Status MeetAll(const RankMeeting& meeting, const std::string& name);

// Checks that all ranks see the same files in `directory`, which must exist. Rank 0 writes a file
// with random contents, the others read it, and rank 0 removes it. name: the file's; no other job
// may use it.
// Blocks: until all ranks have looked. Errors name a rank that does not see it: kFailedPrecondition
// where this worker's storage differs from that of most ranks, kUnavailable on the others; and
// kFailedPrecondition (FieldError) where rank 0 cannot write the file.
absl::Status CheckShared(const RankMeeting& meeting, const std::string& directory,
                         const std::string& name);

// Says which checkpoint a rank must see before it trains.
struct SavedOptions {
  StepId step;            // the job has a checkpoint of this step; 0: it has none
  StepId at_most;         // a newer one will do, if it is not above this step; 0: any
  std::string directory;  // as the job gives it, for errors
  // Finds the directory. It need not exist yet.
  std::function<absl::StatusOr<std::string>()> resolve;
  // NFS may show a name that another host has made a minute late.
  absl::Duration patience = absl::Minutes(1);
  std::function<void(absl::Duration)> pause = [](absl::Duration d) { absl::SleepFor(d); };
  const std::atomic<bool>* given_up = nullptr;  // once it is true, the wait ends soon
};

// Checks that this rank sees the checkpoint, whole or damaged, or a newer one. If it does not, the
// storage here is not that of the other workers, and training would begin with an older step.
// Blocks: while it looks again and again. Errors: kFailedPrecondition (FieldError).
absl::Status AwaitSaved(const SavedOptions& options);

struct ResumeOptions {
  const config::JobSpec* job = nullptr;  // borrowed for the call
  std::string directory;                 // where the checkpoints are, absolute
  std::string wanted;                    // "auto", "none" or a step
  StepId at_most;                        // for "auto": the newest step allowed; 0: any
};

// Loads and verifies what this rank needs. It may be called again, with an older step, after an
// error that is damage (checkpoint::IsDamage). Any other error ends the meeting: it is this rank's
// own trouble, and the job does not go back to an older step for it.
using LoadStep = std::function<absl::Status(const checkpoint::StepFiles&)>;

// Returns the same on all ranks, except that only rank 0 has notes.
// Blocks: until all ranks have loaded.
// Errors: kInvalidArgument: the job differs from the checkpoint's, or the step that it names does
// not exist. kFailedPrecondition (FieldError), which the other ranks see as kUnavailable, on rank
// 0: there are checkpoints and none can be used. The job does not start over by itself then.
// kUnavailable: another rank cannot read one. Others come from this rank's disk.
absl::StatusOr<control::Resumed> AgreeOnResume(const RankMeeting& meeting,
                                               const ResumeOptions& options, const LoadStep& load);

}  // namespace takt::session
