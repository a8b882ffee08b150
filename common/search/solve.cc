// SPDX-License-Identifier: Apache-2.0
#include "common/search/solve.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "common/search/compact.h"
#include "common/search/exact.h"
#include "common/search/pool.h"
#include "common/search/seeds.h"

namespace takt::search {
namespace {

using schedule::Placement;

// Problems up to this size are searched for their optimum.
constexpr int kMaxExactItems = 24;
constexpr std::int64_t kMaxExactStates = 100'000;

Problem WithEqualTimes(Problem problem) {
  for (Holder& holder : problem.holders) {
    holder.forward = holder.input_grad = holder.weight_grad = 1;
    holder.backward = 2;
    holder.activation = holder.gradient = {};
  }
  return problem;
}

// Searches one problem: seeds, then rearrangements, then local improvement.
class Solver {
 public:
  Solver(const Request& request, const Problem& problem, double bound, Budget& budget)
      : request_(request),
        problem_(problem),
        bound_(bound),
        budget_(budget),
        random_(request.seed),
        evaluator_(problem),
        pool_(kPoolSize) {}

  Solution Run() {
    Seed();
    if (IsLong() && !IsDone()) Lengthen();
    if (problem_.placement == Placement::kV && blocks_.empty() && !IsDone())
      TryBlocks(VBlocks(problem_.num_ranks));
    Rearrange();
    Polish();
    if (pool_.shortest() < complete_.makespan) {
      const Order& best = pool_.orders().front();
      complete_.makespan = evaluator_.Fill(best.rows, best.rule, &complete_.rows);
      complete_.origin = best.origin;
    }
    return std::move(complete_);
  }

 private:
  static constexpr std::size_t kPoolSize = 24, kNumPolished = 4, kNumBlocks = 100;

  bool IsLong() const { return problem_.num_microbatches > 2 * problem_.num_ranks; }

  bool IsDone() {
    return std::min(pool_.shortest(), complete_.makespan) <= bound_ * (1 + 1e-9) ||
           budget_.IsSpent();
  }

  double Time(const Rows& rows, const FillRule& rule) {
    --budget_.candidates;
    return evaluator_.Fill(rows, rule, nullptr);
  }

  // Times an order with the first rule and, if that is promising, with the others. Returns the
  // makespan under the best one.
  double Try(const Rows& rows, std::string_view origin) {
    Order order{.rows = rows, .makespan = Time(rows, {}), .origin = std::string(origin)};
    constexpr double kPromising = 1.02;
    if (order.makespan > pool_.bar() * kPromising) return order.makespan;
    for (const int keep : {FillRule::kKeepAll, 1}) {
      for (const double overrun : {0.0, 0.3, 0.6, 0.99}) {
        const FillRule rule{.overrun = overrun, .keep = keep};
        const double time = Time(rows, rule);
        if (time < order.makespan) {
          order.makespan = time;
          order.rule = rule;
        }
      }
    }
    const double makespan = order.makespan;
    pool_.Add(std::move(order));
    return makespan;
  }

  // Times an order that has its W.
  void TryComplete(const Rows& rows, std::string_view origin) {
    if (!Fits(problem_, rows)) return;
    --budget_.candidates;
    const double makespan = evaluator_.Time(rows);
    if (makespan < complete_.makespan) {
      complete_ = {.rows = rows, .makespan = makespan, .origin = std::string(origin)};
    }
  }

  void Seed() {
    const Visit visit = [this](const Rows& rows, std::string_view origin) {
      Try(rows, origin);
      return !IsDone();
    };
    SerialSeed(problem_, visit);
    if (IsDone()) return;
    FamilySeeds(problem_, request_, [this](const Rows& rows, std::string_view origin) {
      TryComplete(rows, origin);
      Try(WithoutWeightGrads(rows), origin);
      return !IsDone();
    });
    if (IsDone()) return;
    if (problem_.placement == Placement::kLoop) LoopSeeds(problem_, visit);
    if (problem_.placement == Placement::kBidirectional) TwoWaySeed(problem_, visit);
  }

  // Returns the makespan of the best order that has the block in its middle.
  double TryBlock(const VBlock& block) {
    constexpr std::string_view kOrigin = "v block";
    const Rows rows = Repeat(problem_, block);
    const double makespan = Try(rows, kOrigin);
    if (!FillsMemory(problem_, block)) return makespan;
    return std::min(makespan, Try(WithFastEnds(problem_, rows), kOrigin));
  }

  // Keeps the best orders, for longer problems.
  void TryBlocks(const std::vector<VBlock>& blocks) {
    std::vector<std::pair<double, std::size_t>> ranked;
    for (std::size_t i = 0; i < blocks.size() && !IsDone(); ++i)
      ranked.emplace_back(TryBlock(blocks[i]), i);
    const std::size_t kept = std::min<std::size_t>(kNumBlocks, ranked.size());
    std::partial_sort(ranked.begin(), ranked.begin() + kept, ranked.end());
    for (std::size_t i = 0; i < kept; ++i) blocks_.push_back(blocks[ranked[i].second]);
  }

  // Rearranges orders under the real times, and under equal ones, which give more regular orders.
  void Rearrange() {
    const Problem equal = WithEqualTimes(problem_);
    const std::vector<Order> seeds = pool_.orders();
    for (const Order& seed : seeds) {
      for (const Problem* times : {&problem_, &equal}) {
        for (const int window : {4, 16}) {
          if (IsDone()) return;
          Try(Compact(*times, seed.rows, window), seed.origin);
        }
      }
    }
  }

  // Repeats the middle of what is found for fewer microbatches. Fill and drain are the same.
  void Lengthen() {
    Request shorter = request_;
    shorter.num_microbatches =
        (problem_.num_microbatches > 4 * problem_.num_ranks ? 4 : 2) * problem_.num_ranks;
    const Problem short_problem =
        MakeProblem(shorter, problem_.placement, problem_.num_stages / problem_.num_ranks);
    Budget part{.candidates = budget_.candidates / 2, .out_of_time = budget_.out_of_time};
    const std::int64_t given = part.candidates;
    Solver solver(shorter, short_problem, 0, part);
    solver.Run();
    budget_.candidates -= given - part.candidates;
    budget_.time_capped |= part.time_capped;
    if (problem_.num_microbatches > 4 * problem_.num_ranks) TryBlocks(solver.blocks_);
    int fewest = shorter.num_microbatches;  // of any way
    for (const Holder& holder : short_problem.holders) fewest = std::min(fewest, holder.count);
    for (const Order& found : solver.pool_.orders()) {
      const bool best = &found == &solver.pool_.orders().front();
      solver.evaluator_.Fill(found.rows, found.rule, nullptr);
      const auto& starts = solver.evaluator_.Starts();
      for (const int period : {1, 2, 3, 4}) {
        for (int first = 1; first + period < fewest; first += best ? 1 : std::max(1, fewest / 4)) {
          if (IsDone()) return;
          Try(Extend(short_problem, found.rows, starts, problem_, first, period), found.origin);
        }
      }
    }
  }

  void Polish() {
    std::vector<Order> starts = pool_.orders();
    if (starts.size() > kNumPolished) starts.resize(kNumPolished);
    for (std::size_t i = 0; i < starts.size() && !IsDone(); ++i) {
      const auto left = static_cast<std::int64_t>(starts.size() - i);
      Budget part{.candidates = budget_.candidates / left, .out_of_time = budget_.out_of_time};
      budget_.candidates -= part.candidates;
      pool_.Add(Improve(evaluator_, std::move(starts[i]), bound_, part, random_));
      budget_.candidates += part.candidates;
      budget_.time_capped |= part.time_capped;
    }
  }

  const Request& request_;
  const Problem& problem_;
  const double bound_;
  Budget& budget_;
  std::mt19937_64 random_;
  Evaluator evaluator_;
  Pool pool_;          // without W
  Solution complete_;  // the best of those that came with their W
  std::vector<VBlock> blocks_;
};

// Makes a B of an I with its own W behind it, where B costs less than I and W, or I sends nothing,
// and the step does not get longer.
class Merger {
 public:
  Merger(const Problem& problem, Rows& rows, double& makespan)
      : problem_(problem), rows_(rows), makespan_(makespan), evaluator_(problem) {}

  void Run() {
    for (int rank = 0; rank < problem_.num_ranks; ++rank) {
      const std::vector<int> pairs = Pairs(rank);
      Merge(rank, pairs, 0, pairs.size());
      std::erase_if(rows_[rank], [](const Step& step) { return step.holder < 0; });
    }
  }

 private:
  // The positions of I that may become B.
  std::vector<int> Pairs(int rank) const {
    std::vector<int> pairs, pending(problem_.holders.size(), 0);
    const Row& row = rows_[rank];
    for (std::size_t i = 0; i + 1 < row.size(); ++i) {
      const Holder& holder = problem_.holders[row[i].holder];
      const double apart = holder.input_grad + holder.weight_grad;
      if (row[i].kind == Kind::kWeightGrad) --pending[row[i].holder];
      if (row[i].kind != Kind::kInputGrad) continue;
      const bool saves = holder.backward < apart;
      const bool silent = holder.previous < 0 && holder.backward <= apart * (1 + 1e-12);
      if (pending[row[i].holder]++ == 0 && row[i + 1].holder == row[i].holder &&
          row[i + 1].kind == Kind::kWeightGrad && (saves || silent))
        pairs.push_back(static_cast<int>(i));
    }
    return pairs;
  }

  void Merge(int rank, const std::vector<int>& pairs, std::size_t begin, std::size_t end) {
    if (begin == end) return;
    Row& row = rows_[rank];
    Rows merged = rows_;
    for (std::size_t i = begin; i < end; ++i) {
      merged[rank][pairs[i]].kind = Kind::kBackward;
      merged[rank][pairs[i] + 1].holder = -1;
    }
    Rows packed = merged;
    for (Row& r : packed) std::erase_if(r, [](const Step& step) { return step.holder < 0; });
    const double time = evaluator_.Time(packed);
    if (time <= makespan_ * (1 + 1e-12)) {
      row = std::move(merged[rank]);
      makespan_ = time;
    } else if (end - begin > 1) {
      const std::size_t middle = (begin + end) / 2;
      Merge(rank, pairs, begin, middle);
      Merge(rank, pairs, middle, end);
    }
  }

  const Problem& problem_;
  Rows& rows_;
  double& makespan_;
  Evaluator evaluator_;
};

// The problem with B alone: gradients take as long as B, and leave nothing to do.
Problem WithWholeBackwards(Problem problem) {
  for (Holder& holder : problem.holders) {
    holder.input_grad = holder.backward;
    holder.weight_grad = 0;
  }
  return problem;
}

bool SavesByWholeBackwards(const Problem& problem) {
  return std::any_of(problem.holders.begin(), problem.holders.end(), [](const Holder& holder) {
    return holder.backward < holder.input_grad + holder.weight_grad;
  });
}

Solution SolveWhole(const Request& request, const Problem& problem, double bound, Budget& budget) {
  const Problem whole = WithWholeBackwards(problem);
  Solution solution = Solver(request, whole, bound, budget).Run();
  for (Row& row : solution.rows) {
    std::erase_if(row, [](const Step& step) { return step.kind == Kind::kWeightGrad; });
    for (Step& step : row) {
      if (step.kind == Kind::kInputGrad) step.kind = Kind::kBackward;
    }
  }
  return solution;
}

}  // namespace

Solution Solve(const Request& request, const Problem& problem, double bound, Budget& budget) {
  Solution solution;
  if (SavesByWholeBackwards(problem)) {
    Budget half{.candidates = budget.candidates / 2, .out_of_time = budget.out_of_time};
    budget.candidates -= half.candidates;
    solution = SolveWhole(request, problem, bound, half);
    budget.candidates += half.candidates;
    budget.time_capped |= half.time_capped;
  }
  if (Solution split = Solver(request, problem, bound, budget).Run();
      split.makespan < solution.makespan)
    solution = std::move(split);
  if (problem.num_items <= kMaxExactItems && !problem.has_reductions() &&
      solution.makespan > bound * (1 + 1e-9)) {
    const std::int64_t max_states = std::min(kMaxExactStates, 4 * request.max_candidates);
    Exact exact = SolveExactly(problem, solution.makespan, max_states);
    if (!exact.rows.empty())
      solution = {.rows = std::move(exact.rows), .makespan = exact.makespan, .origin = "exact"};
  }
  if (!solution.rows.empty()) Merger(problem, solution.rows, solution.makespan).Run();
  return solution;
}

}  // namespace takt::search
