// SPDX-License-Identifier: Apache-2.0
#include "common/plan/spread.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/config/testing/jobs.h"
#include "common/model/vocabulary.h"
#include "common/plan/refine.h"
#include "common/plan/stage_costs.h"
#include "common/profile/layer_shape.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::plan {
namespace {

using config::Vocabulary;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;

constexpr int kBlocks = 6;

// A job whose head takes most of the time, on two ranks under 1f1b.
config::JobSpec Job(Vocabulary vocabulary) {
  config::JobSpec job = config::SmallGpt2Job();
  job.model.vocab = kBlocks * model::kVocabularyBlock;
  job.parallelism = {.pipeline = 2, .schedule = "1f1b", .vocabulary = vocabulary};
  return job;
}

const PlanOptions kFreeLinks{
    .max_workers = 4, .link_latency_seconds = 0, .link_seconds_per_byte = 0};

class SpreadTest : public ::testing::Test {
 protected:
  CandidateInputs inputs() const {
    return {.job = job_, .model = model_, .options = options_, .spread = true};
  }
  mesh::Partition Partition(const std::vector<int>& stage_layers) const {
    return MakePartition(model_, 2, stage_layers, schedule::Placement::kLoop, 2).value();
  }

  config::JobSpec job_ = Job(Vocabulary::kSpread);
  model::Model model_ = model::BuildModel(job_.model, job_.microbatch).value();
  PlanOptions options_ = kFreeLinks;
};

TEST_F(SpreadTest, BlocksGoToTheRankWithTheLeastWork) {
  EXPECT_THAT(DealBlocks(inputs(), Partition({4, 4})), ElementsAre(kBlocks / 2, kBlocks));
  const mesh::VocabularyEnds uneven = DealBlocks(inputs(), Partition({8, 0}));
  EXPECT_EQ(uneven.back(), kBlocks);
  EXPECT_LT(uneven.front(), kBlocks / 2);
}

TEST_F(SpreadTest, TheHeadIsOnItsStageOrInTheWordsOfTheRanks) {
  const mesh::Partition partition = Partition({4, 4});
  CandidateInputs last = inputs();
  last.spread = false;
  const cost::Costs whole = CostsOf(last, partition);
  const cost::Costs spread = CostsOf(inputs(), partition, {2, kBlocks});
  EXPECT_LT(spread.F(StageId(1)), whole.F(StageId(1)));
  EXPECT_NEAR(spread.S(PpRank(1)), 2 * spread.S(PpRank(0)), 1e-12);
  EXPECT_NEAR(spread.F(StageId(1)) + spread.S(PpRank(0)) + spread.S(PpRank(1)), whole.F(StageId(1)),
              1e-9);
  EXPECT_EQ(spread.tied_reduction, 0);
  EXPECT_EQ(CostsOf(inputs(), partition, {0, kBlocks}).S(PpRank(0)), 0);
}

TEST_F(SpreadTest, MeasuredWordsCountMoreThanAShareOfTheHead) {
  auto profile = std::make_shared<profile::Profile>();
  options_.host.machine = "a processor";
  const std::int64_t words = kBlocks / 2 * model::kVocabularyBlock;
  const profile::Conditions here =
      options_.host.ConditionsOf(2, job_.parallelism.threads, options_.device);
  profile->AddLayer({profile::ShapeOfWords(model_, words), here},
                    {.work = profile::WorkOfWords(model_, words),
                     .seconds = {.forward = 3, .input_grad = 5, .weight_grad = 0}});
  options_.profile = profile;
  const mesh::Partition partition = Partition({4, 4});
  const cost::Costs costs = CostsOf(inputs(), partition, {kBlocks / 2, kBlocks});
  EXPECT_DOUBLE_EQ(costs.S(PpRank(0)), 3);
  EXPECT_DOUBLE_EQ(costs.T(PpRank(1)), 5);
  Origins origins;
  AddOrigins(inputs(), partition, {kBlocks / 2, kBlocks}, origins);
  EXPECT_THAT(origins.measured, ElementsAre(StartsWith("vocabulary, hidden 64, vocab 12288")));
  EXPECT_THAT(origins.guessed, Not(Contains(HasSubstr("gpt2 head"))));
}

TEST_F(SpreadTest, WhatCannotSpreadSaysWhyAndWhatToDo) {
  const auto error_of = [](const config::JobSpec& job, const PlanOptions& options) {
    const absl::Status status = MakePlan(job, options).status();
    EXPECT_THAT(FieldErrorsOf(status),
                ElementsAre(Field(&FieldError::field, "parallelism.vocabulary")))
        << status;
    return std::string(status.message());
  };
  EXPECT_EQ(error_of(job_, {.max_workers = 2, .device = config::DeviceKind::kCuda}),
            "parallelism.vocabulary is spread: must be last on GPUs, on which spread has not been "
            "tested yet; use auto or last, or device: cpu");
  EXPECT_EQ(error_of(job_, {.max_workers = 2, .oldest_protocol = kSpreadProtocolVersion - 1}),
            "parallelism.vocabulary is spread: must be last, as a worker's program is too old to "
            "spread the vocabulary; use auto or last, or upgrade takt-worker");
  job_.parallelism.schedule = "chimera";
  EXPECT_THAT(error_of(job_, kFreeLinks), HasSubstr("must be last under chimera: "));
  job_.parallelism.schedule = "pipedream-2bw";
  job_.adamw.clip_norm = 0;
  EXPECT_THAT(error_of(job_, kFreeLinks), HasSubstr("must be last under pipedream-2bw: "));
}

TEST_F(SpreadTest, RefinedCutsKeepEveryBlockAndAreNoSlower) {
  job_.parallelism.stage_layers = {7, 1};
  const Candidate cut = FromFamily(inputs(), "1f1b", 2).value();
  const Candidate better = WithBetterPartition(inputs(), cut);
  EXPECT_LE(better.report.makespan, cut.report.makespan);
  EXPECT_EQ(better.plan.vocabulary_ends.back(), kBlocks);
  EXPECT_TRUE(std::ranges::is_sorted(better.plan.vocabulary_ends));
  EXPECT_EQ(better.plan.partition[0].last_layer, cut.plan.partition[0].last_layer);
}

TEST(SpreadPlan, AVocabularyThatIsSpreadHasAShorterStep) {
  const Plan last = MakePlan(Job(Vocabulary::kLast), kFreeLinks).value();
  const Plan spread = MakePlan(Job(Vocabulary::kSpread), kFreeLinks).value();
  EXPECT_THAT(last.vocabulary_ends, IsEmpty());
  EXPECT_FALSE(last.schedule.spreads_vocabulary);
  ASSERT_THAT(spread.vocabulary_ends, SizeIs(2));
  EXPECT_TRUE(spread.schedule.spreads_vocabulary);
  EXPECT_LT(spread.predicted_bubble_fraction, last.predicted_bubble_fraction / 2);
  EXPECT_LT(spread.predicted_step_seconds, last.predicted_step_seconds);
  EXPECT_THAT(ToString(spread), HasSubstr("pp rank 1 has words "));
}

TEST(SpreadPlan, TheLeastTimeOfAStepHasTheWordsOfTheRanks) {
  const Forecasts forecasts = MakeForecasts(Job(Vocabulary::kSpread), kFreeLinks, 1).value();
  const Forecast& spread = forecasts.candidates.front();
  ASSERT_TRUE(spread.plan.schedule.spreads_vocabulary);
  EXPECT_GE(spread.parts.lower_bound, spread.parts.compute * (1 - 1e-9));
  EXPECT_LE(spread.parts.lower_bound, spread.plan.predicted_step_seconds * (1 + 1e-9));
  EXPECT_GE(spread.parts.imbalance, 0);
}

TEST(SpreadPlan, AutoTakesWhatIsMoreThanOnePercentFaster) {
  EXPECT_THAT(MakePlan(Job(Vocabulary::kAuto), kFreeLinks)->vocabulary_ends, SizeIs(2));
  // One block cannot be spread, and one rank has all of them.
  config::JobSpec job = Job(Vocabulary::kAuto);
  job.model.vocab = model::kVocabularyBlock;
  EXPECT_THAT(MakePlan(job, kFreeLinks)->vocabulary_ends, IsEmpty());
  job = Job(Vocabulary::kSpread);
  job.parallelism.pipeline = 1;
  EXPECT_THAT(MakePlan(job, kFreeLinks)->vocabulary_ends, IsEmpty());
  // Meetings that take longer than all work are not worth it.
  PlanOptions slow = kFreeLinks;
  slow.link_latency_seconds = 1;
  EXPECT_THAT(MakePlan(Job(Vocabulary::kAuto), slow)->vocabulary_ends, IsEmpty());
  // Copies of the state would have no rows of it.
  job = Job(Vocabulary::kAuto);
  job.copy_every_steps = 1;
  EXPECT_THAT(MakePlan(job, kFreeLinks)->vocabulary_ends, IsEmpty());
  PlanOptions old = kFreeLinks;
  old.oldest_protocol = kSpreadProtocolVersion - 1;
  EXPECT_THAT(MakePlan(Job(Vocabulary::kAuto), old)->vocabulary_ends, IsEmpty());
}

TEST(SpreadPlan, ForecastsCompareBothAndSayWhyGpusDoNotSpread) {
  config::JobSpec job = Job(Vocabulary::kAuto);
  const Forecasts both = MakeForecasts(job, kFreeLinks, 5).value();
  ASSERT_THAT(both.candidates, SizeIs(2));
  EXPECT_THAT(both.candidates[0].plan.vocabulary_ends, SizeIs(2));
  EXPECT_THAT(both.candidates[1].plan.vocabulary_ends, IsEmpty());
  PlanOptions gpus = kFreeLinks;
  gpus.device = config::DeviceKind::kCuda;
  const Forecasts on_gpus = MakeForecasts(job, gpus, 5).value();
  EXPECT_THAT(on_gpus.candidates, SizeIs(1));
  EXPECT_THAT(
      on_gpus.refused,
      ElementsAre(testing::AllOf(
          Field(&Refusal::spread, true),
          Field(&Refusal::reason, "spreading the vocabulary has not been tested on GPUs yet"))));
}

TEST(SpreadPlan, EachFamilyThatFlushesSpreads) {
  for (const char* family : {"gpipe", "1f1b", "zb-h1", "zb-v", "interleaved-1f1b"}) {
    config::JobSpec job = Job(Vocabulary::kSpread);
    job.parallelism.schedule = family;
    const absl::StatusOr<Plan> plan = MakePlan(job, kFreeLinks);
    ASSERT_TRUE(plan.ok()) << family << ": " << plan.status();
    EXPECT_THAT(plan->vocabulary_ends, SizeIs(2)) << family;
    const schedule::Schedule without = WithoutVocabulary(plan->schedule);
    const std::size_t microbatches = plan->schedule.num_microbatches;
    for (std::size_t rank = 0; rank < without.ranks.size(); ++rank) {
      EXPECT_EQ(plan->schedule.ranks[rank].size(), without.ranks[rank].size() + 2 * microbatches)
          << family;
    }
  }
}

TEST(SpreadPlan, PredictStepKnowsTheSplit) {
  const config::JobSpec job = Job(Vocabulary::kSpread);
  const Plan plan = MakePlan(job, kFreeLinks).value();
  EXPECT_DOUBLE_EQ(PredictStep(job, kFreeLinks, plan).value(), plan.predicted_step_seconds);
}

}  // namespace
}  // namespace takt::plan
