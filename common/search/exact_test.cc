// SPDX-License-Identifier: Apache-2.0
#include "common/search/exact.h"

#include <algorithm>

#include "common/search/evaluator.h"
#include "gtest/gtest.h"

namespace takt::search {
namespace {

using schedule::Placement;

const cost::Costs& Skew() {
  static const auto* const costs = new cost::Costs{.forward = {1},
                                                   .input_grad = {1.1},
                                                   .weight_grad = {0.7},
                                                   .backward = {1.8},
                                                   .link = {.latency = 0.1}};
  return *costs;
}

// The shortest time of all words of all ranks.
class EveryOrder {
 public:
  explicit EveryOrder(const Problem& problem)
      : problem_(problem), evaluator_(problem), rows_(problem.num_ranks) {}

  double Shortest() {
    Extend(0);
    return shortest_;
  }

 private:
  void Extend(int rank) {
    if (rank == problem_.num_ranks) {
      if (Fits(problem_, rows_)) shortest_ = std::min(shortest_, evaluator_.Time(rows_));
      return;
    }
    bool complete = true;
    for (const int h : problem_.holders_of_rank[rank]) {
      for (const Kind kind : {Kind::kForward, Kind::kInputGrad, Kind::kWeightGrad}) {
        const Step step{static_cast<std::int16_t>(h), kind};
        Row& row = rows_[rank];
        const auto done = [&](Kind of) {
          return std::count(row.begin(), row.end(), Step{static_cast<std::int16_t>(h), of});
        };
        if (done(kind) == problem_.holders[h].count) continue;
        complete = false;
        if (kind == Kind::kInputGrad && done(kind) == done(Kind::kForward)) continue;
        if (kind == Kind::kWeightGrad && done(kind) == done(Kind::kInputGrad)) continue;
        row.push_back(step);
        Extend(rank);
        row.pop_back();
      }
    }
    if (complete) Extend(rank + 1);
  }

  const Problem& problem_;
  Evaluator evaluator_;
  Rows rows_;
  double shortest_ = kNever;
};

TEST(SolveExactly, FindsTheShortestOfAllOrders) {
  struct Size {
    int ranks, microbatches, chunks;
  };
  for (const auto& [ranks, microbatches, chunks] :
       {Size{1, 2, 1}, Size{2, 1, 1}, Size{2, 2, 1}, Size{2, 3, 1}, Size{3, 2, 1}, Size{2, 1, 2}}) {
    for (const cost::Costs& costs : {cost::Costs{}, Skew()}) {
      for (int limit = chunks; limit <= chunks * microbatches; ++limit) {
        const Request request{.num_ranks = ranks,
                              .num_microbatches = microbatches,
                              .costs = costs,
                              .max_in_flight = {limit}};
        const Problem problem = MakeProblem(request, Placement::kLoop, chunks);
        const Exact exact = SolveExactly(problem, kNever, 100'000);
        EXPECT_TRUE(exact.proved);
        EXPECT_NEAR(exact.makespan, EveryOrder(problem).Shortest(), 1e-9)
            << ranks << " ranks, " << microbatches << " microbatches, " << limit;
        EXPECT_NEAR(Evaluator(problem).Time(exact.rows), exact.makespan, 1e-9);
      }
    }
  }
}

TEST(SolveExactly, SaysThatNothingIsShorter) {
  const Problem problem = MakeProblem({.num_ranks = 2, .num_microbatches = 2}, Placement::kLoop, 1);
  const double optimum = SolveExactly(problem, kNever, 100'000).makespan;
  const Exact again = SolveExactly(problem, optimum, 100'000);
  EXPECT_TRUE(again.proved);
  EXPECT_TRUE(again.rows.empty());
}

TEST(SolveExactly, GivesUpAtItsLimit) {
  const Problem problem =
      MakeProblem({.num_ranks = 3, .num_microbatches = 4, .costs = Skew()}, Placement::kLoop, 2);
  EXPECT_FALSE(SolveExactly(problem, kNever, 1000).proved);
}

TEST(Search, IsOptimalOnSmallProblems) {
  for (const int chunks : {1, 2}) {
    for (int ranks = 1; ranks <= 3; ++ranks) {
      for (int microbatches = 1; microbatches <= 4; ++microbatches) {
        for (const cost::Costs& costs : {cost::Costs{}, Skew()}) {
          for (int limit = chunks; limit <= std::min(ranks + 1, microbatches) * chunks; ++limit) {
            Request request{.num_ranks = ranks,
                            .num_microbatches = microbatches,
                            .num_chunks = {chunks},
                            .costs = costs,
                            .max_in_flight = {limit},
                            .max_candidates = 25'000};
            const double found = Search(request)->makespan;
            for (const Placement placement : {Placement::kLoop, Placement::kV}) {
              if (placement == Placement::kV && (chunks != 2 || ranks == 1)) continue;
              const Exact exact =
                  SolveExactly(MakeProblem(request, placement, chunks), found, 1'000'000);
              EXPECT_TRUE(exact.proved && exact.rows.empty())
                  << found << " against " << exact.makespan << ": " << chunks << " chunks, "
                  << ranks << " ranks, " << microbatches << " microbatches, " << limit;
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace takt::search
