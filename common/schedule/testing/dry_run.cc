// SPDX-License-Identifier: Apache-2.0
#include "common/schedule/testing/dry_run.h"

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "common/schedule/action_cost.h"

namespace takt::schedule {
namespace {

struct Result {
  double end = -1;  // not yet there
  int rank = 0;
};

class Runner {
 public:
  Runner(const Schedule& schedule, const cost::Costs& costs)
      : schedule_(schedule),
        costs_(costs),
        forwards_(schedule.num_stages * schedule.num_microbatches),
        gradients_(forwards_.size()),
        position_(schedule.ranks.size(), 0),
        clock_(schedule.ranks.size(), 0),
        busy_(schedule.ranks.size(), 0) {}

  Timing Run() {
    std::size_t left = schedule_.ranks.size();
    while (left > 0) {
      left = 0;
      bool moved = false;
      for (int rank = 0; rank < schedule_.num_ranks(); ++rank) {
        while (Step(rank)) moved = true;
        if (position_[rank] < schedule_.ranks[rank].size()) ++left;
      }
      if (!moved && left > 0) std::abort();  // not valid
    }
    const double makespan = *std::max_element(clock_.begin(), clock_.end());
    return {makespan, makespan - *std::max_element(busy_.begin(), busy_.end())};
  }

 private:
  Result& Of(std::vector<Result>& results, int stage, const Action& action) {
    return results[stage * schedule_.num_microbatches + action.microbatch.value()];
  }

  // The earliest start that one input allows; negative: the input is not there yet.
  double Arrival(const Result& input, int rank) const {
    if (input.end < 0) return -1;
    if (input.rank == rank) return input.end;
    return input.end + costs_.Link(PpRank(input.rank), PpRank(rank)).latency;
  }

  double Ready(const Action& action, int rank) {
    const int stage = action.stage.value();
    switch (action.kind) {
      case ActionKind::kForward:
        return stage == 0 ? 0 : Arrival(Of(forwards_, stage - 1, action), rank);
      case ActionKind::kWeightGrad:
        return Arrival(Of(gradients_, stage, action), rank);
      case ActionKind::kInputGrad:
      case ActionKind::kBackward:
        break;
      case ActionKind::kVocabularyForward:
      case ActionKind::kVocabularyBackward:
        return -1;  // this run has none
    }
    const double own = Arrival(Of(forwards_, stage, action), rank);
    if (own < 0 || stage == schedule_.num_stages - 1) return own;
    const double gradient = Arrival(Of(gradients_, stage + 1, action), rank);
    return gradient < 0 ? -1 : std::max(own, gradient);
  }

  // Runs the next cell of the row (an overlapped pair is one cell), if it can.
  bool Step(int rank) {
    const std::vector<Action>& row = schedule_.ranks[rank];
    const std::size_t first = position_[rank];
    if (first == row.size()) return false;
    const std::size_t end = first + (row[first].joins_next ? 2 : 1);
    double start = clock_[rank];
    for (std::size_t i = first; i < end; ++i) {
      const double ready = Ready(row[i], rank);
      if (ready < 0) return false;
      start = std::max(start, ready);
    }
    const double cost = end - first == 2 ? costs_.O(row[first].stage, row[first + 1].stage)
                                         : CostOf(costs_, row[first]);
    for (std::size_t i = first; i < end; ++i) {
      if (row[i].kind == ActionKind::kWeightGrad) continue;
      auto& results = row[i].kind == ActionKind::kForward ? forwards_ : gradients_;
      Of(results, row[i].stage.value(), row[i]) = {start + cost, rank};
    }
    clock_[rank] = start + cost;
    busy_[rank] += cost;
    position_[rank] = end;
    return true;
  }

  const Schedule& schedule_;
  const cost::Costs& costs_;
  std::vector<Result> forwards_, gradients_;  // by stage, then microbatch
  std::vector<std::size_t> position_;
  std::vector<double> clock_, busy_;
};

}  // namespace

Timing DryRun(const Schedule& schedule, const cost::Costs& costs) {
  return Runner(schedule, costs).Run();
}

}  // namespace takt::schedule
