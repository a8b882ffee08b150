// SPDX-License-Identifier: Apache-2.0
#include "common/schedule/graph.h"

#include "common/base/status.h"

namespace takt::schedule {
namespace {

// Counts, by microbatch, how many ranks have not run their S and their T.
class VocabularyCounts {
 public:
  explicit VocabularyCounts(const Schedule& schedule) {
    if (!schedule.spreads_vocabulary) return;
    forwards_.assign(static_cast<std::size_t>(schedule.num_microbatches), schedule.num_ranks());
    backwards_ = forwards_;
  }

  bool HasAllForwards(MicrobatchId m) const { return forwards_[m.value()] == 0; }
  bool HasAllBackwards(MicrobatchId m) const { return backwards_[m.value()] == 0; }

  // Returns whether `action` is the last S, or the last T, of its microbatch.
  bool Completes(const Action& action) {
    if (!IsOfVocabulary(action.kind)) return false;
    const bool forward = action.kind == ActionKind::kVocabularyForward;
    return --(forward ? forwards_ : backwards_)[action.microbatch.value()] == 0;
  }

 private:
  std::vector<int> forwards_, backwards_;
};

}  // namespace

ActionGraph::ActionGraph(const Schedule& schedule) : schedule_(schedule) {
  const std::size_t cells =
      static_cast<std::size_t>(schedule.num_stages) * schedule.num_microbatches;
  for (auto& of_kind : by_cell_) of_kind.assign(cells, -1);
  if (schedule.spreads_vocabulary) {
    const std::size_t of_ranks = schedule.ranks.size() * schedule.num_microbatches;
    for (auto& of_kind : by_rank_) of_kind.assign(of_ranks, -1);
  }
  for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
    row_begin_.push_back(num_actions());
    for (const Action& action : schedule.ranks[rank]) {
      const ActionNumber number = num_actions();
      rank_of_.push_back(rank);
      if (IsOfVocabulary(action.kind)) {
        TAKT_CHECK(schedule.spreads_vocabulary && action.microbatch.value() >= 0 &&
                   action.microbatch.value() < schedule.num_microbatches);
        const bool forward = action.kind == ActionKind::kVocabularyForward;
        by_rank_[forward ? 0 : 1][VocabularyCell(rank, action.microbatch)] = number;
        continue;
      }
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

ActionNumber ActionGraph::Occupant(ActionNumber number) const {
  const Action& action = At(number);
  if (action.kind == ActionKind::kVocabularyForward) {
    return VocabularyForward(RankOf(number), action.microbatch);
  }
  if (action.kind == ActionKind::kVocabularyBackward) {
    return VocabularyBackward(RankOf(number), action.microbatch);
  }
  return Of(PurposeOf(action.kind), action.stage, action.microbatch);
}

ActionNumber ActionGraph::Neighbour(const Action& action, int distance) const {
  if (action.kind == ActionKind::kWeightGrad || IsOfVocabulary(action.kind)) return -1;
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

std::vector<ActionNumber> ActionGraph::Needs(const Action& action) const {
  std::vector<ActionNumber> needed;
  if (action.kind == ActionKind::kVocabularyForward) {
    needed.push_back(Forward(StageId(schedule_.num_stages - 1), action.microbatch));
  } else if (action.kind == ActionKind::kVocabularyBackward || TakesFromVocabulary(action)) {
    const int which = action.kind == ActionKind::kVocabularyBackward ? 0 : 1;
    for (int rank = 0; rank < schedule_.num_ranks(); ++rank) {
      needed.push_back(OfVocabulary(which, rank, action.microbatch));
    }
  } else if (const ActionNumber producer = Producer(action); producer >= 0) {
    needed.push_back(producer);
  }
  return needed;
}

std::vector<ActionNumber> ActionGraph::TopologicalOrder() const {
  const int num_ranks = schedule_.num_ranks();
  std::vector<ActionNumber> order;
  order.reserve(rank_of_.size());
  std::vector<bool> done(rank_of_.size(), false);
  std::vector<int> next(num_ranks, 0);  // position of each rank's first action not done
  std::vector<int> work;                // ranks that may have become able to go on
  for (int rank = num_ranks - 1; rank >= 0; --rank) work.push_back(rank);
  VocabularyCounts vocabulary(schedule_);
  const auto can_run = [&](ActionNumber number) -> bool {
    const Action& action = At(number);
    if (action.kind == ActionKind::kVocabularyForward) {
      return done[Forward(StageId(schedule_.num_stages - 1), action.microbatch)];
    }
    if (action.kind == ActionKind::kVocabularyBackward) {
      return vocabulary.HasAllForwards(action.microbatch);
    }
    if (TakesFromVocabulary(action)) return vocabulary.HasAllBackwards(action.microbatch);
    const ActionNumber producer = Producer(action);
    return producer < 0 || done[producer];
  };
  const auto run = [&](ActionNumber number) {
    done[number] = true;
    order.push_back(number);
    const Action& action = At(number);
    if (GivesToVocabulary(action) || vocabulary.Completes(action)) {
      for (int rank = num_ranks - 1; rank >= 0; --rank) work.push_back(rank);
    }
    const ActionNumber consumer = Consumer(action);
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
