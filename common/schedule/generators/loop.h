// SPDX-License-Identifier: Apache-2.0
// The template behind every family with loop placement (stage s on rank s mod P).
// Source: the common form of Narayanan 2021 (1f1b, interleaved), Lamy-Poirier 2022 (looped) and Qi
// 2023 (split backward).
#pragma once

#include <functional>

#include "common/schedule/generate.h"
#include "common/schedule/schedule.h"

namespace takt::schedule {

// Microbatches are cut into groups of `group` (the last may be shorter). Forwards go group by
// group, within a group chunk by chunk, and within a chunk microbatch by microbatch. Backwards go
// the same way, with chunks descending. Rank r does `warmup(r)` forwards, then one forward and one
// backward in turn until both are done.
struct LoopOrder {
  int group = 0;  // 0: all microbatches
  std::function<int(int rank)> warmup;
  // For a split backward: from the (lag(r)+1)-th I on, the oldest W follows each I, and the rest of
  // the W come at the end. Null: the backward is whole (B).
  std::function<int(int rank)> lag;
};

// options: as Generator::generate gets them.
Schedule BuildLoop(const Family& family, const GenerateOptions& options, LoopOrder order);

}  // namespace takt::schedule
