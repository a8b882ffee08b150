// SPDX-License-Identifier: Apache-2.0
// Ranks' parts of a checkpoint put together. Pure; the state is stored with the job, so a
// coordinator that is started again goes on where the old one was.
//
//   (first rank tells) --> kWriting --(all told)--> kComplete --(a worker made it visible, or
//                             |                        could not)--> settled
//                             +--(all told or ended, one of an error or before it
//                                told)--> kFailed --> settled
//
// They are settled in the order of their steps: every rank writes them in that order.
#pragma once

#include <span>
#include <string>

#include "common/control/reports.h"
#include "coordinator/job/decide.h"
#include "coordinator/store/record.h"

namespace takt::job {

// False: nothing new. It was told before, or its checkpoint is settled.
bool AddReport(store::Saving& saving, const control::CheckpointReport& report);

struct SavingState {
  enum class Kind : std::uint8_t { kNone, kWriting, kComplete, kFailed };
  Kind kind = Kind::kNone;  // of the oldest open checkpoint
  std::string reason;       // what it waits for, or why it failed
};

// ranks_gave_up: those that have not told how they ended never will.
SavingState JudgeOldest(const store::Saving& saving, std::span<const RankRun> ranks,
                        bool ranks_gave_up);

// The oldest open checkpoint is visible or has failed; returned.
store::OpenCheckpoint SettleOldest(store::Saving& saving);

}  // namespace takt::job
