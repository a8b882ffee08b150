// SPDX-License-Identifier: Apache-2.0
#include "common/search/search.h"

#include <algorithm>
#include <limits>
#include <map>

#include "common/base/status.h"
#include "common/program/lowering.h"
#include "common/schedule/validator.h"
#include "common/search/problem.h"
#include "common/sim/prove.h"
#include "common/sim/simulate.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::search {
namespace {

using schedule::Placement;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

cost::Costs Skew() {
  return {.forward = {1},
          .input_grad = {1.1},
          .weight_grad = {0.7},
          .backward = {1.8},
          .link = {.latency = 0.1}};
}

// Searches, and checks the result with the validator, the proof and the simulator.
Found Checked(const Request& request) {
  const absl::StatusOr<Found> found = Search(request);
  EXPECT_TRUE(found.ok()) << found.status();
  if (!found.ok()) return {};
  schedule::ValidateOptions options;
  if (request.max_in_flight.size() == 1) options.max_in_flight = request.max_in_flight[0];
  EXPECT_TRUE(schedule::Validate(found->schedule, options).ok());
  EXPECT_THAT(schedule::Warnings(found->schedule), IsEmpty());
  const auto programs = program::Lower(found->schedule, {});
  EXPECT_TRUE(programs.ok() && sim::Prove(*programs).ok());
  const auto report = sim::Simulate(*programs, request.costs);
  EXPECT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->makespan, found->makespan);
  EXPECT_GE(found->makespan, found->bound.makespan * (1 - 1e-9));
  return *found;
}

// The simulator does the same (Simulate.GathersOfShardsTakeTheSecondHalfOfASumAfterTheUpdate).
TEST(Search, CountsTheScatterAloneWhereReplicasShare) {
  Request request{.num_ranks = 2, .num_microbatches = 2, .costs = {.reduction = {8}}};
  const auto reduction = [&] {
    return MakeProblem(request, Placement::kLoop, 1).holders[0].reduction;
  };
  EXPECT_EQ(reduction(), 8);
  request.shares = true;
  EXPECT_EQ(reduction(), 4);
  request.costs.chained_sums = true;  // there a scatter takes as long as a whole sum
  EXPECT_EQ(reduction(), 8);
}

// An exact search found it, 2.2 % above the bound.
TEST(Search, FindsAKnownOptimum) {
  const Found found = Checked({.num_ranks = 4,
                               .num_microbatches = 8,
                               .num_chunks = {1},
                               .costs = Skew(),
                               .max_in_flight = {4}});
  EXPECT_NEAR(found.makespan, 27.8, 1e-9);
  EXPECT_NEAR(found.bound.makespan, 27.2, 1e-9);
  EXPECT_NEAR(found.gap, 27.8 / 27.2 - 1, 1e-9);
}

TEST(Search, ComesWithinTwoPercentOfTheBoundOnAverage) {
  for (const int chunks : {1, 2, 4}) {
    double gaps = 0;
    int count = 0;
    for (const int ranks : {4, 8}) {
      for (const int rounds : {1, 2, 4}) {
        for (const cost::Costs& costs : {cost::Costs{}, Skew()}) {
          gaps += Checked({.num_ranks = ranks,
                           .num_microbatches = rounds * ranks,
                           .num_chunks = {chunks},
                           .costs = costs,
                           .max_in_flight = {chunks * ranks},
                           .max_candidates = 4000})
                      .gap;
          ++count;
        }
      }
    }
    EXPECT_LE(gaps / count, 0.02) << chunks;
  }
}

// The published search with building blocks comes to an idle time of 3P - 1 in half of 1F1B's
// memory (Qi 2024, 2405.15362).
TEST(Search, FillsAndDrainsAVInHalfTheMemory) {
  for (const int ranks : {4, 8, 16}) {
    const Found found = Checked({.num_ranks = ranks,
                                 .num_microbatches = 2 * ranks,
                                 .num_chunks = {2},
                                 .placements = {Placement::kV},
                                 .max_in_flight = {ranks},
                                 .max_candidates = 1000,
                                 .max_time = absl::InfiniteDuration()});
    EXPECT_LE(found.makespan, 12 * ranks + 3 * ranks - 1) << ranks;
  }
}

TEST(Search, RunsAloneOnOneRank) {
  const Found found = Checked({.num_ranks = 1, .num_microbatches = 5});
  EXPECT_EQ(found.makespan, 15);
  EXPECT_EQ(found.gap, 0);
}

TEST(Search, GivesTheSameScheduleForTheSameSeed) {
  Request request{.num_ranks = 4,
                  .num_microbatches = 9,
                  .costs = Skew(),
                  .max_in_flight = {6},
                  .max_candidates = 3000,
                  .max_time = absl::InfiniteDuration()};
  const Found one = Checked(request), other = Checked(request);
  EXPECT_EQ(one.schedule.ranks, other.schedule.ranks);
  EXPECT_EQ(one.num_candidates, other.num_candidates);
}

TEST(Search, SaysWhenTheClockEndsIt) {
  const Found found = Checked({.num_ranks = 4,
                               .num_microbatches = 8,
                               .costs = Skew(),
                               .max_in_flight = {4},
                               .max_time = absl::ZeroDuration()});
  EXPECT_TRUE(found.time_capped);
}

// The last stage takes twice as long, so the other ranks wait, and that is the reason given.
TEST(Search, TakesStagesAsTheyAre) {
  Request request{.num_ranks = 4, .num_microbatches = 16, .num_chunks = {1}, .max_in_flight = {4}};
  request.costs.forward = {1, 1, 1, 2};
  request.costs.input_grad = {1, 1, 1, 2};
  request.costs.weight_grad = {1, 1, 1, 2};
  request.costs.backward = {2, 2, 2, 4};
  const Found found = Checked(request);
  EXPECT_EQ(found.bound.binds, schedule::Binding::kImbalance);
  EXPECT_LE(found.gap, 0.02);
}

TEST(Search, KeepsEachRankWithinItsOwnBytes) {
  const Request request{.num_ranks = 4,
                        .num_microbatches = 8,
                        .num_chunks = {2},
                        .costs = Skew(),
                        .max_bytes = {60, 80, 40, 100},
                        .stash_bytes = {10, 10, 10, 10, 10, 10, 10, 30}};
  const Found found = Checked(request);
  for (int rank = 0; rank < 4; ++rank) {
    std::int64_t held = 0;
    for (const schedule::Action& action : found.schedule.ranks[rank]) {
      const std::int64_t bytes = request.stash_bytes[action.stage.value()];
      if (action.kind == schedule::ActionKind::kForward) held += bytes;
      EXPECT_LE(held, request.max_bytes[rank]);
      if (action.kind == schedule::ActionKind::kWeightGrad ||
          action.kind == schedule::ActionKind::kBackward)
        held -= bytes;
    }
  }
}

TEST(Search, UsesWholeBackwardsWhereTheyAreCheaper) {
  Request request{.num_ranks = 2, .num_microbatches = 16, .num_chunks = {1}};
  request.costs.backward = {1.5};  // against I + W = 2
  EXPECT_LE(Checked(request).makespan, 16 * 2.5 + 2.5);
}

// Tries every limit, from the least that any schedule needs.
TEST(Search, FitsWhateverMemoryThereIs) {
  double before = std::numeric_limits<double>::infinity();
  for (int limit = 1; limit <= 12; ++limit) {
    const Found found = Checked({.num_ranks = 4,
                                 .num_microbatches = 6,
                                 .costs = Skew(),
                                 .max_in_flight = {limit},
                                 .max_candidates = 3000});
    before = std::min(before, found.makespan);
    EXPECT_LE(found.makespan, before * 1.05) << limit;
  }
}

TEST(Search, RefusesWhatCannotBe) {
  const auto error = [](const Request& request) {
    const absl::Status status = Search(request).status();
    EXPECT_FALSE(FieldErrorsOf(status).empty()) << status;
    return std::string(status.message());
  };
  EXPECT_THAT(error({.num_ranks = 0}), HasSubstr("ranks is 0"));
  EXPECT_THAT(error({.num_ranks = 4, .num_microbatches = -1}), HasSubstr("microbatches is -1"));
  EXPECT_THAT(error({.num_ranks = 4, .num_microbatches = 1'000'000'000}),
              HasSubstr("microbatches is 1000000000"));
  EXPECT_THAT(error({.num_ranks = 1'000'000'000, .num_microbatches = 4}), HasSubstr("1000000000"));
  EXPECT_THAT(error({.num_ranks = 4, .num_microbatches = 8, .num_chunks = {0}}),
              HasSubstr("chunks is 0"));
  EXPECT_THAT(
      error({.num_ranks = 4, .num_microbatches = 8, .num_chunks = {4}, .max_in_flight = {3}}),
      HasSubstr("no schedule of this size holds less than 4 microbatch-chunks on a rank"));
  EXPECT_THAT(error({.num_ranks = 4, .num_microbatches = 8, .max_in_flight = {0}}),
              HasSubstr("no schedule of this size holds less than 1 microbatch-chunks"));
  EXPECT_THAT(error({.num_ranks = 2,
                     .num_microbatches = 8,
                     .num_chunks = {1},
                     .max_bytes = {99},
                     .stash_bytes = {100, 50}}),
              HasSubstr("memory is 99: no schedule of this size holds less than 100 bytes"));
  EXPECT_THAT(error({.num_ranks = 3,
                     .num_microbatches = 8,
                     .num_chunks = {1},
                     .placements = {Placement::kBidirectional}}),
              HasSubstr("placement is bidirectional"));
  cost::Costs costs;
  costs.forward = {-1};
  EXPECT_THAT(error({.num_ranks = 4, .num_microbatches = 8, .costs = costs}),
              HasSubstr("cost.F is -1"));
  costs.forward = {std::numeric_limits<double>::quiet_NaN()};
  EXPECT_THAT(error({.num_ranks = 4, .num_microbatches = 8, .costs = costs}),
              HasSubstr("cost.F is nan"));
}

}  // namespace
}  // namespace takt::search
