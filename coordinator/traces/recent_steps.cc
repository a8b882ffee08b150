// SPDX-License-Identifier: Apache-2.0
#include "coordinator/traces/recent_steps.h"

#include <algorithm>
#include <utility>

namespace takt::traces {
namespace {

std::int64_t BytesOf(const trace::StepTrace& step) {
  return static_cast<std::int64_t>(sizeof(step) +
                                   (step.body.size() + step.prologue.size() + step.stalls.size()) *
                                       sizeof(trace::Span));
}

}  // namespace

void RecentSteps::Add(trace::StepTrace step, const trace::ClockOffset& clock) {
  const int rank = step.rank.value();
  const StepId id = step.step;
  clocks_[rank] = clock;
  std::map<int, trace::StepTrace>& ranks = steps_[id];
  const std::int64_t its_bytes = BytesOf(step);
  if (ranks.try_emplace(rank, std::move(step)).second) bytes_ += its_bytes;  // else it came again
  if (static_cast<int>(ranks.size()) == num_ranks_)
    newest_complete_ = std::max(newest_complete_, id);
  while (bytes_ > max_bytes_ && steps_.size() > 2) Drop();
}

void RecentSteps::Drop() {
  for (const auto& [rank, step] : steps_.begin()->second) bytes_ -= BytesOf(step);
  steps_.erase(steps_.begin());
}

std::vector<trace::RankTrace> RecentSteps::Newest(int count) const {
  std::vector<const std::map<int, trace::StepTrace>*> complete;  // newest first
  for (auto it = steps_.rbegin(); it != steps_.rend(); ++it) {
    if (static_cast<int>(complete.size()) == count) break;
    if (static_cast<int>(it->second.size()) == num_ranks_) complete.push_back(&it->second);
  }
  std::vector<trace::RankTrace> ranks(num_ranks_);
  for (int rank = 0; rank < num_ranks_; ++rank) {
    ranks[rank].clock = clocks_[rank];
    for (auto it = complete.rbegin(); it != complete.rend(); ++it)
      ranks[rank].steps.push_back((*it)->at(rank));
  }
  return ranks;
}

}  // namespace takt::traces
