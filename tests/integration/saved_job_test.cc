// SPDX-License-Identifier: Apache-2.0
// Jobs with checkpoints through real daemons: whatever happens to them, their losses are those of a
// job that nobody disturbed, and each step is committed once.
#include <signal.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/config/job_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/cluster.h"

namespace takt {
namespace {

using testing::Cluster;

constexpr int kSteps = 1500;

std::string Yaml(const std::string& name, const std::string& checkpoint,
                 const std::string& parallelism = "pipeline: 2, schedule: 1f1b",
                 int steps = kSteps) {
  return absl::StrCat(
      "name: ", name,
      "\nmodel: {family: gpt2, layers: 4, hidden: 16, heads: 2, context: 16, vocab: 256}"
      "\ndata: {train: {path: data.txt, format: bytes}, shuffle: true}"
      "\nbatch: {global: 8, microbatch: 2}"
      "\noptimizer: {adamw: {learning_rate: 3.0e-3}, lr_schedule: {warmup_steps: 5, decay: "
      "cosine}}"
      "\nsteps: ",
      steps, "\nseed: 7\nparallelism: {threads: 1, ", parallelism,
      "}\ncheckpoint: {directory: ", name, ", ", checkpoint, ", in_memory: off}\n");
}

using Curve = std::vector<std::pair<double, double>>;

// Loss and norm of each step; the steps must be 1, 2, ... without gap or repetition.
Curve CurveOf(Cluster& cluster, const std::string& job) {
  Curve curve;
  for (const v1::StepReport& step : cluster.Steps(job)) {
    curve.emplace_back(step.loss(), step.grad_norm());
    EXPECT_EQ(step.step(), static_cast<std::int64_t>(curve.size()));
  }
  return curve;
}

const Curve& Undisturbed() {
  static const Curve curve = [] {
    Cluster cluster(2);
    cluster.Submit(Yaml("undisturbed", "every_steps: 0"));
    const v1::Job job = cluster.AwaitEnd("undisturbed");
    EXPECT_EQ(job.state(), v1::JOB_STATE_SUCCEEDED) << job.reason();
    EXPECT_EQ(job.checkpoint().step(), kSteps);
    return CurveOf(cluster, "undisturbed");
  }();
  return curve;
}

bool IsPaused(const v1::Job& job) {
  return job.state() == v1::JOB_STATE_PAUSED || testing::HasEnded(job);
}

bool HasCheckpoint(const v1::Job& job) { return job.has_checkpoint() || testing::HasEnded(job); }

void ExpectTrainedAsUndisturbed(Cluster& cluster, const std::string& name) {
  const v1::Job job = cluster.AwaitEnd(name);
  EXPECT_EQ(job.state(), v1::JOB_STATE_SUCCEEDED) << job.reason();
  EXPECT_EQ(job.checkpoint().step(), kSteps);
  EXPECT_EQ(CurveOf(cluster, name), Undisturbed());
}

TEST(SavedJob, PausesAndGoesOnAsIfNothingHadHappened) {
  Cluster cluster(2);
  cluster.Submit(Yaml("j", "every_steps: 0"));
  cluster.AwaitStep("j", 10);
  cluster.Pause("j");
  const v1::Job paused = cluster.AwaitJob("j", IsPaused);
  ASSERT_EQ(paused.state(), v1::JOB_STATE_PAUSED) << paused.reason();
  EXPECT_GE(paused.checkpoint().step(), 10);
  EXPECT_EQ(paused.checkpoint().step(), paused.last_step().step());
  cluster.AwaitIdle({"w0", "w1"});
  EXPECT_TRUE(std::filesystem::exists(cluster.directory() + "/j/latest/manifest.json"));
  cluster.Resume("j");
  ExpectTrainedAsUndisturbed(cluster, "j");
  EXPECT_EQ(cluster.Job("j").resumed_step(), paused.checkpoint().step());
}

TEST(SavedJob, MovesOffADrainedWorker) {
  Cluster cluster(3);
  cluster.Submit(Yaml("j", "every_steps: 0"));
  const v1::Job before = cluster.AwaitStep("j", 5);
  ASSERT_EQ(before.ranks_size(), 2);
  const std::string drained = before.ranks(1).worker();
  cluster.Drain(drained);
  cluster.AwaitIdle({drained});
  ExpectTrainedAsUndisturbed(cluster, "j");
  EXPECT_EQ(cluster.Job("j").generation(), 2);
}

TEST(SavedJob, MovesOffAWorkerThatIsToldToEnd) {
  Cluster cluster(3);
  cluster.Submit(Yaml("j", "every_steps: 0"));
  const v1::Job before = cluster.AwaitStep("j", 5);
  ASSERT_EQ(before.ranks_size(), 2);
  cli::Process& leaving = cluster.worker(before.ranks(0).worker());
  leaving.Signal(SIGTERM);
  ASSERT_TRUE(leaving.WaitUntil(absl::Now() + Cluster::kPatience));
  EXPECT_EQ(leaving.EndText(), "exit status 0");
  ExpectTrainedAsUndisturbed(cluster, "j");
}

TEST(SavedJob, RecoversWhenAKilledWorkerIsBack) {
  Cluster cluster(2);
  cluster.Submit(Yaml("j", "every_steps: 50"));
  cluster.AwaitJob("j", HasCheckpoint);
  cluster.Kill(cluster.worker("w1"));
  cluster.StartWorker("w1");
  ExpectTrainedAsUndisturbed(cluster, "j");
  const v1::Job job = cluster.Job("j");
  EXPECT_GE(job.resumed_step(), 50);
  bool recovered = false;
  for (const v1::JobTransition& transition : job.transitions())
    recovered |= transition.state() == v1::JOB_STATE_RECOVERING;
  EXPECT_TRUE(recovered);
}

TEST(SavedJob, SurvivesKillsOfTheCoordinatorWhileItSaves) {
  Cluster cluster(2);
  cluster.Submit(Yaml("j", "every_steps: 20"));
  for (const int step : {50, 400, 800}) {
    cluster.AwaitStep("j", step);
    cluster.Kill(cluster.coordinator());
    cluster.StartCoordinator();
  }
  ExpectTrainedAsUndisturbed(cluster, "j");
}

TEST(SavedJob, GoesOnInAnotherShape) {
  Cluster cluster(3);
  cluster.Submit(Yaml("j", "every_steps: 0"));
  cluster.AwaitStep("j", 10);
  cluster.Pause("j");
  const v1::Job paused = cluster.AwaitJob("j", IsPaused);
  ASSERT_EQ(paused.state(), v1::JOB_STATE_PAUSED) << paused.reason();
  const std::int64_t step = paused.checkpoint().step();
  cluster.Cancel("j");
  // Another job of another name: three stages instead of two, from the same directory.
  std::string yaml = Yaml("k", "every_steps: 0", "pipeline: 3, schedule: gpipe");
  yaml.replace(yaml.find("directory: k"), 12, "directory: j");
  cluster.Submit(yaml);
  const v1::Job job = cluster.AwaitEnd("k");
  ASSERT_EQ(job.state(), v1::JOB_STATE_SUCCEEDED) << job.reason();
  EXPECT_EQ(job.resumed_step(), step);
  const std::vector<v1::StepReport> steps = cluster.Steps("k");
  ASSERT_EQ(static_cast<std::int64_t>(steps.size()), kSteps - step);
  for (const v1::StepReport& report : steps) {
    EXPECT_EQ(report.loss(), Undisturbed()[report.step() - 1].first) << report.step();
  }
}

// The storage is mounted on the other host only after the job has moved there.
TEST(SavedJob, WaitsWhereItsCheckpointIsNotSeenAndDoesNotBeginAnew) {
  namespace fs = std::filesystem;
  std::string base = (fs::temp_directory_path() / "takt-roots-XXXXXX").string();
  ASSERT_NE(mkdtemp(base.data()), nullptr);
  for (const char* root : {"/here", "/there"}) fs::create_directory(base + root);
  {
    Cluster cluster(2, {{"w0", testing::WorkerPlace{.root = base + "/here"}},
                        {"w1", testing::WorkerPlace{.root = base + "/there"}}});
    cluster.Drain("w1");
    const std::string yaml =
        testing::EmulatedJob{.name = "j", .pipeline = 1, .steps = 1'000'000}.Yaml() +
        "checkpoint: {directory: c, every_steps: 0, in_memory: off}\n";
    cluster.Submit(*config::ParseJobFile(yaml, {}));
    cluster.AwaitStep("j", 5);
    cluster.Pause("j");
    const v1::Job paused = cluster.AwaitJob("j", IsPaused);
    ASSERT_EQ(paused.state(), v1::JOB_STATE_PAUSED) << paused.reason();
    cluster.Drain("w0");
    cluster.Undrain("w1");
    cluster.Resume("j");
    cluster.AwaitJob("j", [](const v1::Job& job) {
      return (job.generation() > 1 && job.ranks_size() > 0) || testing::HasEnded(job);
    });
    fs::copy(base + "/here/c", base + "/there/c.partial",
             fs::copy_options::recursive | fs::copy_options::copy_symlinks);
    fs::rename(base + "/there/c.partial", base + "/there/c");
    const v1::Job going = cluster.AwaitJob("j", [](const v1::Job& job) {
      return (job.generation() > 1 && job.state() == v1::JOB_STATE_RUNNING) ||
             testing::HasEnded(job);
    });
    EXPECT_EQ(going.state(), v1::JOB_STATE_RUNNING) << going.reason();
    EXPECT_EQ(going.resumed_step(), paused.checkpoint().step());
    cluster.Cancel("j");
    cluster.AwaitEnd("j");
  }
  fs::remove_all(base);
}

TEST(SavedJob, GivesItsWorkersToAHigherPriorityAndGoesOn) {
  Cluster cluster(2);
  // It has minutes to go: a job that would wait less pauses nobody.
  cluster.Submit(Yaml("low", "every_steps: 0", "pipeline: 2, schedule: 1f1b", 1'000'000) +
                 "priority: 10\n");
  cluster.AwaitStep("low", 10);
  cluster.Submit(testing::EmulatedJob{.name = "high", .pipeline = 2, .steps = 20}.Yaml() +
                 "priority: 90\n");
  const v1::Job high = cluster.AwaitEnd("high");
  EXPECT_EQ(high.state(), v1::JOB_STATE_SUCCEEDED) << high.reason();
  const v1::Job low = cluster.AwaitJob(
      "low", [](const v1::Job& job) { return job.generation() > 1 || testing::HasEnded(job); });
  ASSERT_TRUE(low.has_checkpoint()) << low.reason();
  cluster.AwaitStep("low", low.checkpoint().step() + 10);
  cluster.Cancel("low");
  cluster.AwaitEnd("low");
  EXPECT_FALSE(CurveOf(cluster, "low").empty());  // each step once
}

}  // namespace
}  // namespace takt
