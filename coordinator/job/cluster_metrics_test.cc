// SPDX-License-Identifier: Apache-2.0
#include "coordinator/job/cluster_metrics.h"

#include <limits>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"

namespace takt::job {
namespace {

using store::JobState;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kNumPpRanks = 4;
const absl::Time kStart = absl::FromUnixSeconds(1000);

class ClusterMetricsTest : public testing::Test {
 protected:
  // Returns a job that has run five steps on four ranks and has a checkpoint.
  static store::JobRecord Running() {
    store::JobRecord job{.number = 1, .id = "id", .name = "j", .state = JobState::kRunning};
    job.transitions = {{JobState::kQueued, kStart, ""},
                       {JobState::kRunning, kStart + absl::Seconds(10), ""}};
    job.generation = Generation(1);
    job.steps = 20;
    MemoryBytes weights;
    weights[MemoryKind::kWeights] = 1024;
    job.plan = {.schedule = "1f1b",
                .mesh = {.pp_size = kNumPpRanks},
                .predicted_step_seconds = 0.5,
                .predicted_bubble_fraction = 0.25,
                .model_flops = 3e9,
                .matmul_flops_per_second = 12e9,
                .memory = std::vector<MemoryBytes>(kNumPpRanks, weights),
                .checkpoint_every_steps = 4};
    job.last_step = Step(5);
    job.checkpoint = store::JobCheckpoint{StepId(4), kStart + absl::Seconds(14)};
    return job;
  }
  static store::StepRecord Step(int step, double loss = 2.5) {
    return {.job_id = "id",
            .generation = Generation(1),
            .step = StepId(step),
            .loss = loss,
            .tokens = 100,
            .step_seconds = 1,
            .bubble_by_pp_rank = std::vector<double>(kNumPpRanks, 0.125),
            .validation_loss = 3,
            .time = kStart + absl::Seconds(10 + step)};
  }

  // Does what the coordinator does with what its cluster wants shown.
  void Publish(const store::JobRecord& job, Outbox outbox = {}) {
    board_.Publish(job);
    outbox.published.push_back(std::make_shared<const store::JobRecord>(job));
    metrics_.Record(outbox, now_);
  }
  void Tick() { metrics_.Tick(workers_, now_); }
  std::string Text() const { return registry_.Text(); }
  int CountOf(const std::string& prefix) const {
    int count = 0;
    for (const absl::string_view line : absl::StrSplit(Text(), '\n')) {
      if (absl::StartsWith(line, prefix)) ++count;
    }
    return count;
  }

  metrics::Registry registry_;
  Board board_;
  ClusterMetrics metrics_{&registry_, &board_};
  std::map<std::string, membership::Worker> workers_;
  absl::Time now_ = kStart + absl::Seconds(20);
};

TEST_F(ClusterMetricsTest, EveryMetricOfAJobIsFedAndWithinItsBound) {
  const store::JobRecord job = Running();
  board_.Publish(job);
  board_.ShowSplit("j", {.generation = Generation(1),
                         .step = StepId(5),
                         .pp_ranks = std::vector<PpRankSplit>(kNumPpRanks)});
  Outbox outbox{.checkpoints = {{.job = "j"}, {.job = "j", .failed = true}}, .recovering = {"j"}};
  outbox.changes.steps.push_back(Step(5));
  Publish(job, outbox);
  const std::vector<std::string> lines = absl::StrSplit(Text(), '\n');
  for (const metrics::Metric* metric : metrics::AllMetrics()) {
    if (!metric->of_job() || metric->source != metrics::Source::kCoordinator) continue;
    int series = 0;
    for (const std::string& line : lines) {
      series +=
          absl::StartsWith(line, std::string(metric->name)) && absl::StrContains(line, "job=\"j\"");
    }
    EXPECT_GT(series, 0) << metric->name;
    EXPECT_LE(series,
              metrics::MostSeriesPerJob(*metric, {.stages = kNumPpRanks, .pp_ranks = kNumPpRanks}))
        << metric->name;
  }
}

TEST_F(ClusterMetricsTest, AStepThatIsExplainedAfterTheEndOfItsJobIsShown) {
  store::JobRecord job = Running();
  job.state = JobState::kSucceeded;
  job.end_time = now_;
  Publish(job);
  EXPECT_EQ(CountOf("takt_step_component_seconds{"), 0);
  board_.ShowSplit("j", {.generation = Generation(1),
                         .step = StepId(5),
                         .pp_ranks = std::vector<PpRankSplit>(kNumPpRanks)});
  Tick();
  EXPECT_EQ(CountOf("takt_step_component_seconds{"), 7);
  EXPECT_EQ(CountOf("takt_rank_compute_seconds{"), kNumPpRanks);
}

TEST_F(ClusterMetricsTest, GaugesSayWhatIsKnownOfTheLastStep) {
  store::JobRecord job = Running();
  job.replan_gain = 0.125;
  Publish(job);
  for (const char* line :
       {"takt_job_state{job=\"j\",state=\"RUNNING\"} 1\n",
        "takt_job_state{job=\"j\",state=\"QUEUED\"} 0\n", "takt_job_step{job=\"j\"} 5\n",
        "takt_job_target_step{job=\"j\"} 20\n", "takt_job_eta_seconds{job=\"j\"} 15\n",
        "takt_last_step_timestamp_seconds{job=\"j\"} 1015\n", "takt_loss{job=\"j\"} 2.5\n",
        "takt_bubble_fraction{job=\"j\",pp_rank=\"3\"} 0.125\n",
        "takt_job_replan_gain_ratio{job=\"j\"} 0.125\n",
        "takt_model_flops_utilization{job=\"j\"} 0.25\n", "takt_checkpoint_step{job=\"j\"} 4\n",
        "takt_checkpoint_timestamp_seconds{job=\"j\"} 1014\n",
        "takt_checkpoints_total{job=\"j\",result=\"failed\"} 0\n"}) {
    EXPECT_THAT(Text(), HasSubstr(line));
  }
}

TEST_F(ClusterMetricsTest, BeforeTheFirstStepAndCheckpointTimesCountFromTheStartOfTheRun) {
  store::JobRecord job = Running();
  job.last_step.reset();
  job.checkpoint.reset();
  Publish(job);
  EXPECT_THAT(Text(), HasSubstr("takt_last_step_timestamp_seconds{job=\"j\"} 1010\n"));
  EXPECT_THAT(Text(), HasSubstr("takt_checkpoint_timestamp_seconds{job=\"j\"} 1010\n"));
  EXPECT_THAT(Text(), HasSubstr("takt_checkpoint_step{job=\"j\"} 0\n"));
  EXPECT_THAT(Text(), Not(HasSubstr("takt_loss{")));
}

TEST_F(ClusterMetricsTest, WhatAnotherJobSavedCounts) {
  store::JobRecord job = Running();
  job.checkpoint.reset();
  job.resumed_step = StepId(3);
  Publish(job);
  EXPECT_THAT(Text(), HasSubstr("takt_checkpoint_step{job=\"j\"} 3\n"));
}

TEST_F(ClusterMetricsTest, StepsWithoutAFiniteLossOrNormAreCounted) {
  Outbox outbox;
  outbox.changes.steps = {Step(3), Step(4, std::numeric_limits<double>::quiet_NaN())};
  outbox.changes.steps.push_back(Step(5));
  outbox.changes.steps.back().grad_norm = std::numeric_limits<double>::infinity();
  Publish(Running(), outbox);
  EXPECT_THAT(Text(), HasSubstr("takt_nonfinite_steps_total{job=\"j\"} 2\n"));
  EXPECT_THAT(Text(), HasSubstr("takt_tokens_total{job=\"j\"} 300\n"));
}

TEST_F(ClusterMetricsTest, SeriesOfAnEndedJobGoTenMinutesLater) {
  store::JobRecord job = Running();
  job.state = JobState::kSucceeded;
  job.end_time = now_;
  Publish(job);
  now_ += absl::Minutes(9);
  Tick();
  EXPECT_THAT(Text(), HasSubstr("takt_job_state{job=\"j\",state=\"SUCCEEDED\"} 1\n"));
  now_ += absl::Minutes(1);
  Tick();
  EXPECT_THAT(Text(), Not(HasSubstr("job=\"j\"")));
  EXPECT_THAT(Text(), HasSubstr("takt_jobs{state=\"SUCCEEDED\"} 1\n"));
  Publish(job);  // a late log line, or a coordinator that was started again
  EXPECT_THAT(Text(), Not(HasSubstr("job=\"j\"")));
}

TEST_F(ClusterMetricsTest, SeriesOfADeletedJobGoAtOnce) {
  Publish(Running());
  metrics_.Drop({.removed = {"id"}});
  EXPECT_THAT(Text(), Not(HasSubstr("job=\"j\"")));
}

TEST_F(ClusterMetricsTest, AShorterPipelineLeavesNoSeriesOfRanksThatAreGone) {
  store::JobRecord job = Running();
  Publish(job);
  job.generation = Generation(2);
  job.plan.mesh.pp_size = 2;
  job.plan.memory.resize(2);
  Publish(job);
  EXPECT_THAT(Text(), HasSubstr("pp_rank=\"1\""));
  EXPECT_THAT(Text(), Not(HasSubstr("pp_rank=\"2\"")));
  job = Running();
  job.generation = Generation(3);
  job.last_step->bubble_by_pp_rank.back() = 0.5;
  Publish(job);
  EXPECT_THAT(Text(), HasSubstr("takt_bubble_fraction{job=\"j\",pp_rank=\"3\"} 0.5"));
}

TEST_F(ClusterMetricsTest, AChangeOfStateOrGenerationDescribesTheJobAgain) {
  store::JobRecord job = Running();
  Publish(job);
  job.generation = Generation(2);
  job.plan.predicted_step_seconds = 0.75;
  Publish(job);
  EXPECT_THAT(Text(), HasSubstr("takt_step_predicted_seconds{job=\"j\"} 0.75\n"));
  job.state = JobState::kPaused;
  Publish(job);
  EXPECT_THAT(Text(), HasSubstr("takt_job_state{job=\"j\",state=\"PAUSED\"} 1\n"));
  EXPECT_THAT(Text(), HasSubstr("takt_job_state{job=\"j\",state=\"RUNNING\"} 0\n"));
}

TEST_F(ClusterMetricsTest, ALostWorkerIsNamedUnlessItWasToGo) {
  membership::Worker attached{.session = membership::SessionId(1)};
  membership::Worker away, lost, left, drained;
  away.away = "its stream ended";
  away.blame = {.quarantined = true, .score = 1.5};
  left.leaving = true;
  drained.drained = true;
  workers_ = {
      {"attached", attached}, {"away", away}, {"lost", lost}, {"left", left}, {"drained", drained}};
  Tick();
  EXPECT_THAT(Text(), HasSubstr("takt_worker_connected{worker=\"away\"} 0\n"));
  EXPECT_THAT(Text(), HasSubstr("takt_workers{state=\"away\"} 1\n"));
  EXPECT_THAT(Text(), HasSubstr("takt_workers{state=\"quarantined\"} 1\n"));
  EXPECT_THAT(Text(), HasSubstr("takt_worker_fault_score{worker=\"away\"} 1.5\n"));
  EXPECT_THAT(Text(), HasSubstr("takt_worker_connected{worker=\"attached\"} 1\n"));
  EXPECT_THAT(Text(), HasSubstr("takt_worker_connected{worker=\"lost\"} 0\n"));
  EXPECT_THAT(Text(), Not(HasSubstr("worker=\"left\"")));
  EXPECT_THAT(Text(), Not(HasSubstr("worker=\"drained\"")));
  EXPECT_THAT(Text(), HasSubstr("takt_workers{state=\"lost\"} 1\n"));
  EXPECT_THAT(Text(), HasSubstr("takt_workers{state=\"drained\"} 1\n"));
  workers_.erase("lost");
  Tick();
  EXPECT_THAT(Text(), Not(HasSubstr("worker=\"lost\"")));
}

TEST_F(ClusterMetricsTest, OfManyWorkersOnlyThoseWithTroubleAreNamed) {
  const membership::Worker attached{.session = membership::SessionId(1)};
  for (int i = 0; i < 16'384; ++i) workers_[absl::StrCat("w", i)] = attached;
  Tick();
  EXPECT_THAT(Text(), Not(HasSubstr("takt_worker_connected{")));
  EXPECT_THAT(Text(), HasSubstr("takt_workers{state=\"idle\"} 16384\n"));
  workers_["w7"].away = "its stream ended";
  workers_["w8"].blame.score = 1;
  Tick();
  EXPECT_THAT(Text(), HasSubstr("takt_worker_connected{worker=\"w7\"} 0\n"));
  EXPECT_THAT(Text(), HasSubstr("takt_worker_connected{worker=\"w8\"} 1\n"));
  workers_["w7"].away.reset();
  Tick();
  EXPECT_THAT(Text(), Not(HasSubstr("worker=\"w7\"")));
  for (auto& [name, worker] : workers_) worker.away = "its stream ended";
  Tick();
  EXPECT_EQ(CountOf("takt_worker_connected{"), 1000);
}

}  // namespace
}  // namespace takt::job
