// SPDX-License-Identifier: Apache-2.0
// The newest steps of one run in memory, as its ranks report them.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "common/base/id.h"
#include "common/trace/job_trace.h"

namespace takt::traces {

// One caller at a time.
class RecentSteps {
 public:
  RecentSteps(int num_ranks, std::int64_t max_bytes)
      : num_ranks_(num_ranks), max_bytes_(max_bytes), clocks_(num_ranks) {}

  // step.rank: below num_ranks. Beyond max_bytes the oldest steps are dropped, but never the last
  // two.
  void Add(trace::StepTrace step, const trace::ClockOffset& clock);

  std::int64_t bytes() const { return bytes_; }
  // 0: no step has been reported by all ranks.
  StepId newest_complete() const { return newest_complete_; }
  // The newest complete steps of all ranks, ascending, at most `count`.
  std::vector<trace::RankTrace> Newest(int count) const;

 private:
  void Drop();

  int num_ranks_;
  std::int64_t max_bytes_;
  std::int64_t bytes_ = 0;
  std::vector<trace::ClockOffset> clocks_;                   // by rank, the newest
  std::map<StepId, std::map<int, trace::StepTrace>> steps_;  // by rank
  StepId newest_complete_;
};

}  // namespace takt::traces
