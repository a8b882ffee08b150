// SPDX-License-Identifier: Apache-2.0
#include "common/plan/refine.h"

#include "common/config/testing/jobs.h"
#include "common/plan/ranking.h"
#include "gmock/gmock.h"

namespace takt::plan {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Ge;

// A job whose head takes about as long as four of its blocks.
class RefineTest : public ::testing::Test {
 protected:
  RefineTest() {
    job_.model.vocab = 4096;
    job_.parallelism = {.pipeline = 2, .schedule = "interleaved-1f1b"};
  }

  CandidateInputs inputs() const { return {.job = job_, .model = model_, .options = options_}; }

  Candidate Cut() {
    model_ = model::BuildModel(job_.model, job_.microbatch).value();
    return FromFamily(inputs(), job_.parallelism.schedule, *job_.parallelism.pipeline).value();
  }

  static std::vector<int> Layers(const Candidate& candidate) {
    std::vector<int> counts;
    for (const mesh::Stage& stage : candidate.plan.partition)
      counts.push_back(stage.last_layer.value() - stage.first_layer.value());
    return counts;
  }

  config::JobSpec job_ = config::SmallGpt2Job();
  model::Model model_;
  PlanOptions options_{.max_workers = 4};
};

TEST_F(RefineTest, BalancesRanksNotOnlyStages) {
  const Candidate cut = Cut(), better = WithBetterPartition(inputs(), cut);
  EXPECT_LT(better.report.makespan, 0.99 * cut.report.makespan);
  EXPECT_EQ(better.plan.schedule.name, cut.plan.schedule.name);
  EXPECT_DOUBLE_EQ(better.plan.predicted_step_seconds, better.report.step_time);
  EXPECT_THAT(Layers(better), Each(Ge(1)));
  int end = 0;
  for (const mesh::Stage& stage : better.plan.partition) {
    EXPECT_EQ(stage.first_layer.value(), end);
    end = stage.last_layer.value();
  }
  EXPECT_EQ(end, 10);  // embedding, eight blocks, head
}

TEST_F(RefineTest, LeavesAPartitionThatTheJobNames) {
  job_.parallelism.stage_layers = {1, 1, 1, 5};
  const Candidate cut = Cut();
  EXPECT_EQ(Layers(WithBetterPartition(inputs(), cut)), Layers(cut));
}

// Which weights a microbatch meets depends on the cut, so losses would.
TEST_F(RefineTest, LeavesTheCutOfAScheduleWithoutAFlush) {
  job_.adamw.clip_norm = 0;
  job_.parallelism.schedule = "pipedream-2bw";
  const Candidate cut = Cut();
  EXPECT_EQ(Layers(WithBetterPartition(inputs(), cut)), Layers(cut));
}

TEST_F(RefineTest, LeavesWhatIsBestAsItIs) {
  job_.model = {.family = model::Family::kEmulated,
                .layers = 8,
                .context = 1,
                .forward_seconds = 1e-3,
                .input_grad_seconds = 1e-3,
                .weight_grad_seconds = 1e-3,
                .activation_bytes = 1};
  job_.parallelism.schedule = "1f1b";
  EXPECT_THAT(Layers(WithBetterPartition(inputs(), Cut())), ElementsAre(4, 4));
}

TEST_F(RefineTest, KeepsWhatFitsTheWorkersWithinTheirMemory) {
  const Candidate cut = Cut();
  options_.worker_memory_bytes = Largest(cut, options_).total();
  EXPECT_TRUE(Fits(WithBetterPartition(inputs(), cut), options_));
}

// The one that MakePlan takes does not depend on how many a caller wants to see.
TEST_F(RefineTest, TheFirstCandidateIsTheSameHoweverManyAreAskedFor) {
  job_.parallelism.schedule = "auto";
  JobInputs inputs = JobInputs::Create(job_, options_).value();
  const Ranking one = *RankCandidates(inputs, 1), many = *RankCandidates(inputs, 8);
  ASSERT_EQ(one.candidates.size(), 1u);
  EXPECT_GT(many.candidates.size(), 1u);
  EXPECT_EQ(Layers(one.candidates[0]), Layers(many.candidates[0]));
  EXPECT_EQ(one.candidates[0].report.makespan, many.candidates[0].report.makespan);
}

}  // namespace
}  // namespace takt::plan
