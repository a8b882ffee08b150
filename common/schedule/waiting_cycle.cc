// SPDX-License-Identifier: Apache-2.0
#include "common/schedule/waiting_cycle.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/schedule/marked_grid.h"

namespace takt::schedule {
namespace {

// The ranks that cannot go on, and what they wait for.
class Standstill {
 public:
  // order: graph.TopologicalOrder(), which does not have all actions.
  Standstill(const ActionGraph& graph, const std::vector<ActionNumber>& order)
      : graph_(graph), schedule_(graph.schedule()), next_(schedule_.num_ranks(), 0) {
    for (const ActionNumber number : order) ++next_[graph.RankOf(number)];
  }

  // The position of the cell at which a rank is stuck.
  int Position(int rank) const { return next_[rank]; }

  // Walks from any stuck rank to the one it waits for, until a rank comes again.
  int RankOnCycle() const {
    int rank = 0;
    while (next_[rank] == static_cast<int>(schedule_.ranks[rank].size())) ++rank;
    for (int i = 0; i < schedule_.num_ranks(); ++i) rank = graph_.RankOf(WaitsFor(rank));
    return rank;
  }

  // The cycle from `rank` on, which is on it.
  std::string Cycle(int rank) const {
    std::string cycle;
    int at = rank;
    do {
      const ActionNumber producer = WaitsFor(at);
      const int other = graph_.RankOf(producer);
      absl::StrAppend(&cycle, at == rank ? "" : "; ", Cell(at), " (",
                      Place(schedule_, at, next_[at]), ") waits for ",
                      graph_.At(producer).ToString());
      if (!IsInCell(producer, other)) {
        absl::StrAppend(&cycle, ", which is behind ", Cell(other), " on rank ", other);
      }
      at = other;
    } while (at != rank);
    return cycle;
  }

 private:
  std::string Cell(int rank) const { return CellText(schedule_.ranks[rank], next_[rank]); }

  bool IsDone(ActionNumber action) const {
    return graph_.PositionOf(action) < next_[graph_.RankOf(action)];
  }

  // Returns whether its rank is stuck at `action`, or at a pair of which it is half.
  bool IsInCell(ActionNumber action, int rank) const {
    const ActionNumber stuck = graph_.Number(rank, next_[rank]);
    return action == stuck || action == graph_.Partner(stuck);
  }

  // Returns the first action that the stuck cell of `rank` needs and that is not done.
  ActionNumber WaitsFor(int rank) const {
    const ActionNumber stuck = graph_.Number(rank, next_[rank]);
    for (const ActionNumber half : {stuck, graph_.Partner(stuck)}) {
      if (half < 0) continue;
      for (const ActionNumber needed : graph_.Needs(graph_.At(half))) {
        if (!IsDone(needed)) return needed;
      }
    }
    TAKT_CHECK(false);  // then the cell would not be stuck
  }

  const ActionGraph& graph_;
  const Schedule& schedule_;
  std::vector<int> next_;
};

}  // namespace

std::optional<WaitingCycle> FindWaitingCycle(const ActionGraph& graph) {
  const std::vector<ActionNumber> order = graph.TopologicalOrder();
  if (static_cast<int>(order.size()) == graph.num_actions()) return std::nullopt;
  const Standstill standstill(graph, order);
  const int rank = standstill.RankOnCycle();
  return WaitingCycle{rank, standstill.Position(rank), standstill.Cycle(rank)};
}

}  // namespace takt::schedule
