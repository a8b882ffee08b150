// SPDX-License-Identifier: Apache-2.0
#include "common/schedule/spread_vocabulary.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/schedule/action_cost.h"
#include "common/schedule/graph.h"

namespace takt::schedule {
namespace {

// Moves each action that is no F behind `depth` more forwards. Pairs come apart.
Row Deepen(const Row& row, int depth) {
  std::vector<Action> forwards;
  for (const Action& action : row) {
    if (action.kind != ActionKind::kForward) continue;
    forwards.push_back(action);
    forwards.back().joins_next = false;
  }
  Row deep;
  deep.reserve(row.size());
  std::size_t num_before = 0;  // forwards before the action in `row`
  std::size_t num_placed = 0;  // forwards in `deep`
  const auto place_up_to = [&](std::size_t count) {
    while (num_placed < std::min(count, forwards.size())) deep.push_back(forwards[num_placed++]);
  };
  for (const Action& action : row) {
    if (action.kind == ActionKind::kForward) {
      ++num_before;
      continue;
    }
    place_up_to(num_before + static_cast<std::size_t>(depth));
    deep.push_back(action);
  }
  place_up_to(forwards.size());
  return deep;
}

// Runs rows in time, and places S and T on the way.
class Run {
 public:
  // graph: of rows without S and T.
  Run(const ActionGraph& graph, const cost::Costs& costs)
      : graph_(graph),
        schedule_(graph.schedule()),
        costs_(costs),
        meeting_(cost::MeetingCost(cost::SlowestLink(costs, schedule_.num_ranks()),
                                   schedule_.num_ranks(), /*bytes=*/0)),
        ranks_(schedule_.ranks.size()),
        ready_at_(static_cast<std::size_t>(graph.num_actions()), kNever),
        forwards_(static_cast<std::size_t>(schedule_.num_microbatches), All()),
        backwards_(forwards_),
        norm_ready_at_(forwards_.size(), kNever) {}

  // Returns the rows with S and T; shorter ones if the run comes to rest before its end.
  std::vector<Row> Place() {
    for (int rank = 0; rank < schedule_.num_ranks(); ++rank) events_.push({0, rank});
    while (!events_.empty()) {
      const auto [time, rank] = events_.top();
      events_.pop();
      if (ranks_[rank].free_at <= time) Begin(rank, time);
    }
    std::vector<Row> rows;
    for (Rank& rank : ranks_) rows.push_back(std::move(rank.placed));
    return rows;
  }

 private:
  static constexpr double kNever = -1;

  struct Rank {
    Row placed;
    int next = 0;                   // position in its row
    int forward = 0, backward = 0;  // the microbatches of its next S and T
    double free_at = 0;
  };
  // The S, or the T, of one microbatch on all ranks.
  struct OfAll {
    int missing = 0;
    double ready_at = 0;  // when what they pass has arrived; grows until none is missing
  };

  OfAll All() const { return {.missing = schedule_.num_ranks()}; }
  static bool IsReady(double ready_at, double time) {
    return ready_at != kNever && ready_at <= time;
  }

  // Begins what a free rank can begin: T, else S, else the next action of its row.
  void Begin(int rank, double time) {
    Rank& state = ranks_[rank];
    if (state.backward < state.forward) {
      const OfAll& parts = forwards_[state.backward];
      if (parts.missing == 0 && parts.ready_at <= time) {
        const MicrobatchId m(state.backward++);
        const double end = End(rank, ActionKind::kVocabularyBackward, m, time);
        return Complete(backwards_[m.value()], end, root_);
      }
    }
    if (state.forward < schedule_.num_microbatches &&
        IsReady(norm_ready_at_[state.forward], time)) {
      const MicrobatchId m(state.forward++);
      const double end = End(rank, ActionKind::kVocabularyForward, m, time);
      return Complete(forwards_[m.value()], end, kAllRanks);
    }
    if (state.next == static_cast<int>(schedule_.ranks[rank].size())) return;
    const ActionNumber number = graph_.Number(rank, state.next);
    if (!IsReady(InputsReadyAt(number), time)) return;
    ++state.next;
    RunAction(rank, number, time);
  }

  // Places S or T, and returns its end.
  double End(int rank, ActionKind kind, MicrobatchId m, double time) {
    const PpRank pp_rank(rank);
    const bool forward = kind == ActionKind::kVocabularyForward;
    const double end = time + (forward ? costs_.S(pp_rank) : costs_.T(pp_rank));
    Occupy(rank, {StageId(schedule_.num_stages), kind, m}, end);
    return end;
  }

  void Occupy(int rank, const Action& action, double end) {
    ranks_[rank].placed.push_back(action);
    ranks_[rank].free_at = end;
    events_.push({end, rank});
  }

  // One rank more has its part. After the last one, `taker` can go on once the parts have arrived.
  void Complete(OfAll& of_all, double end, int taker) {
    of_all.ready_at = std::max(of_all.ready_at, end + meeting_);
    if (--of_all.missing > 0) return;
    const int first = taker == kAllRanks ? 0 : taker;
    const int last = taker == kAllRanks ? schedule_.num_ranks() - 1 : taker;
    for (int rank = first; rank <= last; ++rank) events_.push({of_all.ready_at, rank});
  }

  // Returns when the inputs of an action of the row are there; kNever: not yet known.
  double InputsReadyAt(ActionNumber number) const {
    const Action& action = graph_.At(number);
    const bool makes_gradient =
        action.kind == ActionKind::kInputGrad || action.kind == ActionKind::kBackward;
    if (makes_gradient && action.stage.value() == schedule_.num_stages - 1) {
      const OfAll& partial = backwards_[action.microbatch.value()];
      return partial.missing == 0 ? partial.ready_at : kNever;
    }
    return graph_.Producer(action) < 0 ? 0 : ready_at_[number];
  }

  void RunAction(int rank, ActionNumber number, double time) {
    const Action& action = graph_.At(number);
    const double end = time + CostOf(costs_, action);
    Occupy(rank, action, end);
    const ActionNumber consumer = graph_.Consumer(action);
    if (consumer >= 0) {
      const int taker = graph_.RankOf(consumer);
      ready_at_[consumer] =
          taker == rank ? end : end + costs_.Link(PpRank(rank), PpRank(taker)).latency;
      events_.push({ready_at_[consumer], taker});
    }
    if (action.kind != ActionKind::kForward || action.stage.value() != schedule_.num_stages - 1) {
      return;
    }
    root_ = rank;
    const double ready_at = end + meeting_;
    norm_ready_at_[action.microbatch.value()] = ready_at;
    for (int each = 0; each < schedule_.num_ranks(); ++each) events_.push({ready_at, each});
  }

  static constexpr int kAllRanks = -1;
  using Event = std::pair<double, int>;  // time, rank

  const ActionGraph& graph_;
  const Schedule& schedule_;
  const cost::Costs& costs_;
  const double meeting_;  // the time of a meeting
  std::vector<Rank> ranks_;
  std::vector<double> ready_at_;             // by action: when its producer's result arrives
  std::vector<OfAll> forwards_, backwards_;  // S and T by microbatch
  std::vector<double> norm_ready_at_;        // by microbatch: when the norm's output arrives
  int root_ = 0;                             // the rank with the last stage, once it has run an F
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
};

absl::Status Refuse(std::string field, std::string value, std::string rule, std::string fix) {
  return InvalidField({.field = std::move(field),
                       .value = std::move(value),
                       .rule = std::move(rule),
                       .fix = std::move(fix)});
}

absl::Status CheckMaySpread(const Schedule& schedule, int depth) {
  if (depth < 0) {
    return Refuse("depth", absl::StrCat(depth), "must be 0 or more", "use 2, as the paper does");
  }
  if (schedule.spreads_vocabulary) {
    return Refuse("schedule", schedule.name, "spreads the vocabulary already",
                  "begin with the schedule without S and T");
  }
  if (schedule.updates != Updates::kFlush) {
    return Refuse("schedule", schedule.name, "has no flush, so no T can wait for all ranks",
                  "use a schedule with a flush");
  }
  if (schedule.placement == Placement::kBidirectional) {
    return Refuse("placement", std::string(PlacementName(schedule.placement)),
                  "has two copies of the weights, so no rank could have its words alone",
                  "use a schedule with one copy of the weights");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Schedule> SpreadVocabulary(const Schedule& schedule, const cost::Costs& costs,
                                          int depth) {
  RETURN_IF_ERROR(CheckMaySpread(schedule, depth));
  RETURN_IF_ERROR(cost::CheckCosts(costs, schedule.num_stages));
  RETURN_IF_ERROR(cost::CheckCostsByRank(costs, schedule.num_ranks()));
  Schedule deep = schedule;
  for (Row& row : deep.ranks) row = Deepen(row, depth);
  const ActionGraph graph(deep);
  Schedule spread = deep;
  spread.spreads_vocabulary = true;
  spread.ranks = Run(graph, costs).Place();
  for (int rank = 0; rank < spread.num_ranks(); ++rank) {
    const std::size_t wanted =
        deep.ranks[rank].size() + 2 * static_cast<std::size_t>(schedule.num_microbatches);
    if (spread.ranks[rank].size() == wanted) continue;
    if (depth > 0) {
      return Refuse("depth", absl::StrCat(depth),
                    absl::StrCat("lets ranks of ", schedule.name, " wait for each other"),
                    "use a smaller one");
    }
    return Refuse("schedule", schedule.name,
                  "runs the last stage out of microbatch order, so a backward waits for an S that "
                  "comes after it",
                  "run the forwards of the last stage in ascending order");
  }
  return spread;
}

}  // namespace takt::schedule
