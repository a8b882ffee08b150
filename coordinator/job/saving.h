// SPDX-License-Identifier: Apache-2.0
// Puts the ranks' parts of a checkpoint together. All functions are pure. The state is stored with
// the job, so a coordinator that is restarted continues where the earlier one was.
//
//   (first rank reports) -> kWriting --(all have)--> kComplete --(a worker made it visible, or
//                             |                        could not)--> settled
//                             +--(all reported or ended; one with an error, or one ended
//                                without a report)--> kFailed --> settled
//
// Checkpoints are settled in the order of their steps: every rank writes them in that order.
#pragma once

#include <span>
#include <string>

#include "common/control/reports.h"
#include "coordinator/job/decide.h"
#include "coordinator/store/record.h"

namespace takt::job {

// Returns false if the report is not new: it came before, or its checkpoint is settled.
bool AddReport(store::Saving& saving, const control::CheckpointReport& report);

struct SavingState {
  enum class Kind : std::uint8_t { kNone, kWriting, kComplete, kFailed };
  Kind kind = Kind::kNone;  // of the oldest open checkpoint
  std::string reason;       // what it waits for, or why it failed
};

// ranks_gave_up: ranks that have not reported how they ended will never do so.
SavingState JudgeOldest(const store::Saving& saving, std::span<const RankRun> ranks,
                        bool ranks_gave_up);

// The oldest open checkpoint is visible or has failed. It is removed and returned.
store::OpenCheckpoint SettleOldest(store::Saving& saving);

}  // namespace takt::job
