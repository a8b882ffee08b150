// SPDX-License-Identifier: Apache-2.0
// Tests the parts of `takt-bench plan-truth` that do not depend on how fast this machine is.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "common/plan/plan.h"
#include "common/profile/probe.h"
#include "tests/bench/job_run.h"
#include "tests/bench/plan_truth_jobs.h"
#include "tests/bench/plan_truth_machine.h"
#include "tests/bench/plan_truth_report.h"

namespace takt::bench {
namespace {

using ::testing::Each;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr int kCores = 2;

plan::Plan PlanOf(const config::JobSpec& job) {
  return plan::MakePlan(job, {.max_workers = RanksOf(job)}).value();
}

TEST(PlanTruthJobs, AllCanBePlannedAndHaveNamesOfTheirOwn) {
  std::set<std::string> names;
  for (const config::JobSpec& job : TruthJobs()) {
    EXPECT_TRUE(names.insert(job.name).second) << job.name;
    EXPECT_LE(job.name.size(), 63U) << job.name;
    const auto plan = plan::MakePlan(job, {.max_workers = RanksOf(job)});
    EXPECT_TRUE(plan.ok()) << job.name << ": " << plan.status();
  }
}

TEST(PlanTruthJobs, AtLeast24RealOnesHave2To60MillionParametersAndFiveSchedules) {
  std::set<std::string> schedules;
  int real = 0;
  for (const config::JobSpec& job : TruthJobs()) {
    if (job.model.family == model::Family::kEmulated) continue;
    const std::int64_t parameters = PlanOf(job).model.num_parameters();
    EXPECT_GE(parameters, 2'000'000) << job.name;
    EXPECT_LE(parameters, 60'000'000) << job.name;
    if (GroupOf(job, kCores) != TruthGroup::kReal) continue;
    ++real;
    schedules.insert(job.parallelism.schedule);
  }
  EXPECT_GE(real, 24);
  EXPECT_GE(schedules.size(), 5U);
}

TEST(PlanTruthJobs, ChoicesAreEightModelsWithOpenSchedules) {
  const std::vector<config::JobSpec> jobs = ChoiceJobs();
  EXPECT_THAT(jobs, SizeIs(8));
  for (const config::JobSpec& job : jobs) EXPECT_EQ(job.parallelism.schedule, "auto");
}

TEST(PlanTruthJobs, SelectTakesTheFirstOrTheNamedOne) {
  const std::vector<config::JobSpec> jobs = TruthJobs();
  EXPECT_THAT(Select(jobs, 0, "").value(), SizeIs(jobs.size()));
  EXPECT_THAT(Select(jobs, 3, "").value(), SizeIs(3));
  const std::string last = jobs.back().name;
  EXPECT_EQ(Select(jobs, 0, last).value().front().name, last);
  EXPECT_THAT(std::string(Select(jobs, 0, "no-such").status().message()), HasSubstr(last));
}

TEST(PlanTruth, APinnedJobHasTheSameProgramsWhateverTheCosts) {
  for (const config::JobSpec& job : TruthJobs()) {
    const plan::Plan plan = PlanOf(job);
    const auto pinned = plan::MakePlan(
        Pinned(job, plan),
        {.max_workers = RanksOf(job), .matmul_flops_per_second = 1e9, .link_latency_seconds = 1});
    ASSERT_TRUE(pinned.ok()) << job.name << ": " << pinned.status();
    ASSERT_EQ(pinned->partition.size(), plan.partition.size()) << job.name;
    for (std::size_t stage = 0; stage < plan.partition.size(); ++stage) {
      EXPECT_EQ(pinned->partition[stage].last_layer, plan.partition[stage].last_layer) << job.name;
      EXPECT_EQ(pinned->partition[stage].pp_rank, plan.partition[stage].pp_rank) << job.name;
    }
    for (std::size_t rank = 0; rank < plan.programs.size(); ++rank) {
      EXPECT_EQ(pinned->programs[rank].body.size(), plan.programs[rank].body.size()) << job.name;
    }
  }
}

TEST(PlanTruth, AJobThatRunsReturnsAllStepsThatItsRanksMeasured) {
  config::JobSpec job = profile::MessageProbeJob(TruthJobs().front(), 2, 4096);
  constexpr double kPassSeconds = 5e-3;  // no step is so short that it is left out
  job.model.forward_seconds = kPassSeconds;
  job.model.input_grad_seconds = job.model.weight_grad_seconds = kPassSeconds;
  job.steps = 4;
  const auto run = RunJob(job, PlanOf(job), 1, "/");
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_EQ(run->trace.num_ranks(), 2);
  EXPECT_THAT(run->step_seconds, SizeIs(4));
  EXPECT_THAT(run->SecondsAfter(3), SizeIs(1));
  // Each rank does the passes of all microbatches.
  EXPECT_THAT(run->step_seconds, Each(Ge(job.global_batch * 3 * kPassSeconds)));
}

TEST(PlanTruthReport, TimingIsTheMedianOfBothRuns) {
  const StepTiming timing = TimingOf({1, 1, 5}, {3, 3, 3});
  EXPECT_DOUBLE_EQ(timing.seconds, 3);
  EXPECT_DOUBLE_EQ(timing.spread, 1);
}

TEST(PlanTruthReport, ErrorsCountWithoutTheirSigns) {
  const ErrorSummary summary = Summarise({-0.3, 0.1, 0.05}, 0.1);
  EXPECT_EQ(summary.jobs, 3);
  EXPECT_EQ(summary.within, 2);
  EXPECT_DOUBLE_EQ(summary.median, 0.1);
  EXPECT_DOUBLE_EQ(summary.largest, 0.3);
  EXPECT_EQ(Summarise({}, 0.1).jobs, 0);
}

TEST(PlanTruthReport, TwoOf24MayBeOverTheLimitButNotOverTwice) {
  const ErrorSummary good{.jobs = 24, .within = 22, .median = 0.05, .largest = 0.2};
  EXPECT_TRUE(IsTrue(good, 0.1));
  ErrorSummary bad = good;
  bad.within = 21;
  EXPECT_FALSE(IsTrue(bad, 0.1));
  bad = good;
  bad.largest = 0.21;
  EXPECT_FALSE(IsTrue(bad, 0.1));
  bad = good;
  bad.median = 0.06;
  EXPECT_FALSE(IsTrue(bad, 0.1));
}

TEST(PlanTruthReport, AWayMayBeSlowerThanTheBestByTheLargestSpread) {
  const MeasuredWay best{.name = "best", .timing = {.seconds = 1, .spread = 0.01}};
  MeasuredWay one{.name = "one", .timing = {.seconds = 1.05, .spread = 0.02}};
  EXPECT_FALSE(Compare(one, {one, best}, 0.03).holds());
  one.timing.spread = 0.06;
  const Comparison comparison = Compare(one, {one, best}, 0.03);
  EXPECT_TRUE(comparison.holds());
  EXPECT_EQ(comparison.best, "best");
  EXPECT_DOUBLE_EQ(comparison.ratio, 1.05);
  EXPECT_TRUE(Compare(best, {one, best}, 0).holds());
}

}  // namespace
}  // namespace takt::bench
