// SPDX-License-Identifier: Apache-2.0
#include "common/schedule/graph.h"

#include "common/base/status.h"

namespace takt::schedule {

ActionGraph::ActionGraph(const Schedule& schedule) : schedule_(schedule) {
  const std::size_t cells =
      static_cast<std::size_t>(schedule.num_stages) * schedule.num_microbatches;
  for (auto& of_kind : by_cell_) of_kind.assign(cells, -1);
  for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
    row_begin_.push_back(num_actions());
    for (const Action& action : schedule.ranks[rank]) {
      const ActionNumber number = num_actions();
      rank_of_.push_back(rank);
      const std::size_t cell = Cell(action.stage, action.microbatch);
      TAKT_CHECK(cell < cells);
      by_cell_[PurposeOf(action.kind)][cell] = number;
    }
  }
}

bool ActionGraph::FlowsUp(MicrobatchId m) const {
  const ActionNumber first = Forward(StageId(0), m);
  return schedule_.placement == Placement::kBidirectional && first >= 0 &&
         RankOf(first) == schedule_.num_ranks() - 1;
}

PpRank ActionGraph::HomeOf(StageId stage, MicrobatchId m) const {
  const PpRank home = RankOfStage(schedule_.placement, schedule_.num_ranks(), stage);
  return FlowsUp(m) ? PpRank(schedule_.num_ranks() - 1 - home.value()) : home;
}

ActionNumber ActionGraph::Occupant(const Action& action) const {
  return Of(PurposeOf(action.kind), action.stage, action.microbatch);
}

ActionNumber ActionGraph::Neighbour(const Action& action, int distance) const {
  if (action.kind == ActionKind::kWeightGrad) return -1;
  if (action.kind != ActionKind::kForward) distance = -distance;
  const StageId stage(action.stage.value() + distance);
  if (stage < StageId(0) || stage >= StageId(schedule_.num_stages)) return -1;
  return Of(PurposeOf(action.kind), stage, action.microbatch);
}

ActionNumber ActionGraph::Partner(ActionNumber action) const {
  const Row& row = schedule_.ranks[RankOf(action)];
  const int position = PositionOf(action);
  if (BeginsPair(row, position)) return action + 1;
  return position > 0 && BeginsPair(row, position - 1) ? action - 1 : -1;
}

std::vector<ActionNumber> ActionGraph::TopologicalOrder() const {
  const int num_ranks = schedule_.num_ranks();
  std::vector<ActionNumber> order;
  order.reserve(rank_of_.size());
  std::vector<bool> done(rank_of_.size(), false);
  std::vector<int> next(num_ranks, 0);  // position of each rank's first action not done
  std::vector<int> work;                // ranks that may have become able to go on
  for (int rank = num_ranks - 1; rank >= 0; --rank) work.push_back(rank);
  const auto can_run = [&](ActionNumber number) {
    const ActionNumber producer = Producer(At(number));
    return producer < 0 || done[producer];
  };
  const auto run = [&](ActionNumber number) {
    done[number] = true;
    order.push_back(number);
    const ActionNumber consumer = Consumer(At(number));
    if (consumer >= 0 && RankOf(consumer) != RankOf(number)) work.push_back(RankOf(consumer));
  };
  while (!work.empty()) {
    const int rank = work.back();
    work.pop_back();
    const Row& row = schedule_.ranks[rank];
    while (next[rank] < static_cast<int>(row.size())) {
      const ActionNumber number = Number(rank, next[rank]);
      const bool pair = BeginsPair(row, next[rank]);
      if (!can_run(number) || (pair && !can_run(number + 1))) break;
      run(number);
      if (pair) run(number + 1);
      next[rank] += pair ? 2 : 1;
    }
  }
  return order;
}

}  // namespace takt::schedule
