// SPDX-License-Identifier: Apache-2.0
#include "common/search/improve.h"

#include <algorithm>
#include <cmath>

namespace takt::search {
namespace {

constexpr int kKeeps[] = {0, 1, 2, FillRule::kKeepAll, FillRule::kKeepAll};
constexpr double kOverruns[] = {0, 0.15, 0.3, 0.5, 0.75, 0.999};

class Draw {
 public:
  explicit Draw(std::mt19937_64& random) : random_(random) {}
  // A draw from [0, bound). The standard distributions differ between libraries, and results must
  // not.
  int Below(int bound) {
    return static_cast<int>((random_() >> 11) % static_cast<unsigned>(bound));
  }
  double Unit() { return static_cast<double>(random_() >> 11) * 0x1p-53; }

 private:
  std::mt19937_64& random_;
};

FillRule DrawRule(Draw& draw) {
  return {.overrun = kOverruns[draw.Below(std::size(kOverruns))],
          .keep = kKeeps[draw.Below(std::size(kKeeps))]};
}

// A step of a row that goes to another position, which may lie outside the row.
struct Move {
  int rank = 0, from = 0, to = 0;
};

// Draws a step of the critical path three times out of four.
Move DrawMove(Draw& draw, const Rows& rows, const std::vector<Evaluator::Place>& path) {
  Move move;
  if (!path.empty() && draw.Below(4) != 0) {
    const Evaluator::Place place = path[draw.Below(static_cast<int>(path.size()))];
    move.rank = place.rank;
    move.from = place.position;
  } else {
    move.rank = draw.Below(static_cast<int>(rows.size()));
    move.from = draw.Below(static_cast<int>(rows[move.rank].size()));
  }
  const int distance = 1 + (draw.Below(3) == 0 ? draw.Below(8) : draw.Below(2));
  move.to = draw.Below(3) != 0 ? move.from - distance : move.from + distance;
  return move;
}

// Takes the step at `from` out of the row and puts it in at `to`.
void MoveStep(Row& row, int from, int to) {
  if (from < to) {
    std::rotate(row.begin() + from, row.begin() + from + 1, row.begin() + to + 1);
  } else {
    std::rotate(row.begin() + to, row.begin() + from, row.begin() + from + 1);
  }
}

}  // namespace

Order Improve(Evaluator& evaluator, Order start, double target, Budget& budget,
              std::mt19937_64& random) {
  Draw draw(random);
  Order best = start, current = std::move(start);
  const std::int64_t total = std::max<std::int64_t>(1, budget.candidates);
  const double warmth = 0.004 * current.makespan;
  const double close = 1e-9 * current.makespan;
  std::vector<Evaluator::Place> path;
  bool fresh = false;
  while (!budget.IsSpent() && best.makespan > target + close) {
    --budget.candidates;
    if (!fresh) {
      evaluator.Fill(current.rows, current.rule, nullptr);
      path = evaluator.CriticalPath();
      fresh = true;
    }
    const double temperature = warmth * static_cast<double>(budget.candidates) / total;
    if (draw.Below(64) == 0) {
      const FillRule rule = DrawRule(draw);
      const double time = evaluator.Fill(current.rows, rule, nullptr);
      if (time <= current.makespan) {
        current.rule = rule;
        current.makespan = time;
        fresh = false;
        if (time < best.makespan) best = current;
      }
      continue;
    }
    const Move move = DrawMove(draw, current.rows, path);
    Row& row = current.rows[move.rank];
    if (move.to < 0 || move.to >= static_cast<int>(row.size())) continue;
    if (row[move.to] == row[move.from]) continue;
    MoveStep(row, move.from, move.to);
    const double time = evaluator.Fill(current.rows, current.rule, nullptr);
    const double allowed = current.makespan - temperature * std::log(std::max(draw.Unit(), 1e-12));
    if (time <= allowed) {
      current.makespan = time;
      fresh = false;
      if (time < best.makespan) best = current;
    } else {
      MoveStep(row, move.to, move.from);
    }
  }
  return best;
}

}  // namespace takt::search
