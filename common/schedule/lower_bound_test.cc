// SPDX-License-Identifier: Apache-2.0
#include "common/schedule/lower_bound.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "common/base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::schedule {
namespace {

using ::testing::HasSubstr;

cost::Costs Skew() {
  return {.forward = {1},
          .input_grad = {1.1},
          .weight_grad = {0.7},
          .backward = {1.8},
          .link = {.latency = 0.1}};
}

BoundInputs Inputs(Placement placement, int ranks, int chunks, int microbatches, int limit,
                   cost::Costs costs = {}) {
  return {.placement = placement,
          .num_ranks = ranks,
          .num_stages = ranks * chunks,
          .num_microbatches = microbatches,
          .costs = std::move(costs),
          .max_in_flight = {limit}};
}

// V*M*(F+I+W) + max(b1, b2, b3).
double ClosedForm(const BoundInputs& inputs) {
  const double p = inputs.num_ranks, v = inputs.num_stages / p, m = inputs.num_microbatches;
  const double k = inputs.max_in_flight[0], c = inputs.costs.link.latency;
  const double f = inputs.costs.forward[0], i = inputs.costs.input_grad[0];
  const double w = inputs.costs.weight_grad[0];
  const double b1 = (p - 1) * (f + c);
  const double b2 = inputs.placement == Placement::kV
                        ? 2 * p * f + (p - 1) * (i + 3 * c) - k * f
                        : v * p * f + (p - 1) * i + (v * p + p - 2) * c - k * f;
  const double b3 = (p - 1) * (f + i + 2 * c) - (k - 1) * w;
  return v * m * (f + i + w) + std::max({b1, b2, b3});
}

TEST(LowerBound, MeetsTheClosedFormForUniformCosts) {
  for (const cost::Costs& costs : {cost::Costs{}, Skew()}) {
    for (const int p : {2, 3, 4, 8, 16}) {
      for (const int m : {p, 2 * p, 4 * p}) {
        for (const int v : {1, 2, 4}) {
          const BoundInputs inputs = Inputs(Placement::kLoop, p, v, m, v * p, costs);
          EXPECT_NEAR(LowerBound(inputs)->makespan, ClosedForm(inputs), 1e-9)
              << p << " " << v << " " << m;
        }
        const BoundInputs inputs = Inputs(Placement::kV, p, 2, m, 2 * p, costs);
        EXPECT_NEAR(LowerBound(inputs)->makespan, ClosedForm(inputs), 1e-9) << p << " v " << m;
      }
    }
  }
}

TEST(LowerBound, OfThePublishedCasesIsAsPrinted) {
  const auto bubble = [](const BoundInputs& inputs) {
    const Bound bound = *LowerBound(inputs);
    return std::round((1 - bound.work / bound.makespan) * 1e4) / 1e4;
  };
  EXPECT_EQ(bubble(Inputs(Placement::kLoop, 4, 1, 8, 4, Skew())), 0.1765);
  EXPECT_EQ(bubble(Inputs(Placement::kV, 8, 2, 32, 16, Skew())), 0.0519);
  EXPECT_EQ(bubble(Inputs(Placement::kLoop, 16, 4, 64, 64, Skew())), 0.0328);
}

TEST(LowerBound, SaysWhatBinds) {
  EXPECT_EQ(LowerBound(Inputs(Placement::kLoop, 1, 1, 8, 8))->binds, Binding::kNothing);
  EXPECT_EQ(LowerBound(Inputs(Placement::kLoop, 4, 1, 8, 8))->binds, Binding::kFill);
  EXPECT_EQ(LowerBound(Inputs(Placement::kLoop, 4, 1, 8, 1))->binds, Binding::kMemory);
  cost::Costs costs;
  costs.forward = {1, 1, 1, 5};
  EXPECT_EQ(LowerBound(Inputs(Placement::kLoop, 4, 1, 8, 8, costs))->binds, Binding::kImbalance);
  costs = {};
  costs.links[{PpRank(1), PpRank(2)}].latency = 30;
  const Bound bound = *LowerBound(Inputs(Placement::kLoop, 4, 1, 8, 8, costs));
  EXPECT_EQ(bound.binds, Binding::kCommunication);
  EXPECT_NEAR(bound.work + bound.fill + bound.imbalance + bound.communication + bound.memory,
              bound.makespan, 1e-9);
}

// With one chunk in flight nothing runs beside anything, so each microbatch takes its whole path.
TEST(LowerBound, OfOneChunkInFlightIsOneMicrobatchAfterTheOther) {
  EXPECT_DOUBLE_EQ(LowerBound(Inputs(Placement::kLoop, 4, 1, 8, 1))->makespan, 8 * 9);
  EXPECT_DOUBLE_EQ(LowerBound(Inputs(Placement::kLoop, 4, 1, 1, 1))->makespan, 9);
}

TEST(LowerBound, TakesABackwardAsItIsShortest) {
  cost::Costs costs;
  costs.backward = {1.5};  // against I + W = 2
  EXPECT_DOUBLE_EQ(LowerBound(Inputs(Placement::kLoop, 1, 1, 8, 8, costs))->makespan, 20);
  costs.overlap = {2};
  EXPECT_DOUBLE_EQ(LowerBound(Inputs(Placement::kLoop, 1, 1, 8, 8, costs))->makespan, 16);
}

// A rank with more work than the others has it in pairs, too.
TEST(LowerBound, PairsThatHideAlmostNothingTakeNoWorkFromARank) {
  cost::Costs costs{
      .forward = {7, 3}, .input_grad = {7, 3}, .weight_grad = {7, 3}, .backward = {14, 6}};
  const Bound alone = *LowerBound(Inputs(Placement::kLoop, 2, 1, 8, 8, costs));
  costs.forward_meetings = costs.backward_meetings = {1e-9};
  const Bound hidden = *LowerBound(Inputs(Placement::kLoop, 2, 1, 8, 8, costs));
  EXPECT_NEAR(hidden.makespan, alone.makespan, 1e-6);
  EXPECT_NEAR(hidden.imbalance, alone.imbalance, 1e-6);
  costs.pair_ratio = 0.9;
  EXPECT_LT(LowerBound(Inputs(Placement::kLoop, 2, 1, 8, 8, costs))->makespan, alone.makespan);
}

TEST(LowerBound, APairIsOfStagesOfOneRank) {
  cost::Costs costs{
      .forward = {1, 1}, .input_grad = {1, 9}, .weight_grad = {1, 9}, .backward = {2, 18}};
  costs.overlap = {2.5, std::nullopt};
  // Stage 0 adds 0.5 to each of its backwards, and stage 1 its whole F.
  EXPECT_DOUBLE_EQ(LowerBound(Inputs(Placement::kLoop, 2, 1, 8, 8, costs))->work,
                   (8 * 2.5 + 8 * 19) / 2);
}

TEST(LowerBound, CountsBytesOnTheLinks) {
  BoundInputs inputs = Inputs(Placement::kLoop, 2, 1, 1, 1);
  inputs.costs.link.seconds_per_byte = 0.5;
  inputs.message_bytes = {4, 0};
  EXPECT_DOUBLE_EQ(LowerBound(inputs)->makespan, 5 + 2 * 2);
}

TEST(LowerBound, RefusesWhatMakesNoSense) {
  const auto error = [](const BoundInputs& inputs) {
    const absl::Status status = LowerBound(inputs).status();
    EXPECT_FALSE(FieldErrorsOf(status).empty()) << status;
    return std::string(status.message());
  };
  EXPECT_THAT(error(Inputs(Placement::kLoop, 0, 1, 8, 8)), HasSubstr("ranks is 0"));
  EXPECT_THAT(error(Inputs(Placement::kV, 4, 3, 8, 8)), HasSubstr("stages is 12"));
  EXPECT_THAT(error(Inputs(Placement::kLoop, 4, 1, 8, 0)), HasSubstr("memory is 0"));
  EXPECT_THAT(error(Inputs(Placement::kLoop, 4, 1, 1'000'000'000, 8)),
              HasSubstr("microbatches is 1000000000"));
  cost::Costs costs;
  costs.weight_grad = {std::numeric_limits<double>::quiet_NaN()};
  EXPECT_THAT(error(Inputs(Placement::kLoop, 4, 1, 8, 8, costs)), HasSubstr("cost.W is nan"));
}

}  // namespace
}  // namespace takt::schedule
