// SPDX-License-Identifier: Apache-2.0
// Jobs through real daemons, from submission to the step log.
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/config/job_file.h"
#include "common/config/job_spec_serde.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "takt/v1/job_spec.pb.h"
#include "tests/numerics/golden.h"
#include "tests/numerics/in_process_run.h"
#include "tests/testing/cluster.h"

namespace takt {
namespace {

using ::testing::AnyOf;
using testing::Cluster;
using ::testing::ElementsAre;
using testing::EmulatedJob;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string GptYaml(const std::string& name, const std::string& parallelism, int steps = 6) {
  return absl::StrCat(
      "name: ", name,
      "\nmodel: {family: gpt2, layers: 8, hidden: 16, heads: 2, context: 16, vocab: 256}"
      "\ndata: {train: {path: data.txt, format: bytes}, shuffle: true}"
      "\nbatch: {global: 16, microbatch: 2}"
      "\noptimizer: {adamw: {learning_rate: 3.0e-3}, lr_schedule: {warmup_steps: 2}}"
      "\nsteps: ",
      steps, "\nseed: 7\nparallelism: {threads: 1, ", parallelism, "}\n");
}

// The steps' numbers, which must be 1, 2, ... without gap or repetition.
void ExpectEachStepOnce(const std::vector<v1::StepReport>& steps, std::int64_t num_steps) {
  ASSERT_EQ(static_cast<std::int64_t>(steps.size()), num_steps);
  for (std::int64_t i = 0; i < num_steps; ++i) EXPECT_EQ(steps[i].step(), i + 1);
}

using LossAndNorm = std::vector<std::pair<double, double>>;

LossAndNorm Curve(const std::vector<v1::StepReport>& steps) {
  LossAndNorm curve;
  for (const v1::StepReport& step : steps) curve.push_back({step.loss(), step.grad_norm()});
  return curve;
}

// Ranks of a job of emulated layers meet in every layer of every microbatch.
TEST(Job, RanksThatShareLayersRunToTheLastStepAndShowTheirMeetings) {
  Cluster cluster(8);
  for (const char* schedule : {"1f1b", "zb-h1", "dualpipe-v"}) {
    for (const auto& [data, tensor] : {std::pair(2, 2), {1, 4}}) {
      const std::string name = absl::StrCat(schedule, "-", tensor);
      cluster.Submit(EmulatedJob{
          .name = name, .pipeline = 2, .data = data, .tensor = tensor, .schedule = schedule}
                         .Yaml());
      const v1::Job job = cluster.AwaitEnd(name);
      ASSERT_EQ(job.state(), v1::JOB_STATE_SUCCEEDED) << name << ": " << job.reason();
      ExpectEachStepOnce(cluster.Steps(name), 10);
      const trace::JobTrace trace = cluster.Trace(name, 3);
      ASSERT_EQ(trace.num_ranks(), 8);
      for (const trace::RankTrace& rank : trace.ranks) {
        ASSERT_FALSE(rank.steps.empty());
        EXPECT_FALSE(rank.steps.front().meetings.empty());
      }
    }
  }
  EXPECT_THAT(cluster.StopAll(), IsEmpty());
}

TEST(Job, SchedulesAndTransportsTrainAlikeBitForBit) {
  Cluster cluster(4);
  const std::vector<std::string> layouts = {
      "pipeline: 1, schedule: naive",
      "pipeline: 4, schedule: naive",
      "pipeline: 4, schedule: gpipe, transport: gloo",
      "pipeline: 4, schedule: 1f1b, transport: shm",
      "pipeline: 4, schedule: interleaved-1f1b, chunks: 2",
      "pipeline: 2, schedule: 1f1b, stage_layers: [3, 5]",
  };
  LossAndNorm first;
  for (std::size_t i = 0; i < layouts.size(); ++i) {
    const std::string name = absl::StrCat("gpt-", i);
    cluster.Submit(GptYaml(name, layouts[i]));
    const v1::Job job = cluster.AwaitEnd(name);
    ASSERT_EQ(job.state(), v1::JOB_STATE_SUCCEEDED) << layouts[i] << ": " << job.reason();
    const auto steps = cluster.Steps(name);
    ExpectEachStepOnce(steps, 6);
    EXPECT_EQ(steps.back().tokens(), 16 * 16);
    EXPECT_THAT(layouts[i], HasSubstr(steps.back().schedule()));
    EXPECT_LT(steps.back().loss(), steps.front().loss());
    if (i == 0) first = Curve(steps);
    EXPECT_EQ(Curve(steps), first) << layouts[i];
  }
  EXPECT_THAT(cluster.StopAll(), IsEmpty());
}

// Every step is clipped, so the first forwards of each run twice.
TEST(Job, StepsWithoutABarrierTrainAlikeBitForBit) {
  Cluster cluster(4);
  const std::tuple<const char*, const char*, const char*> jobs[] = {
      {"with", "true", "pipeline: 1, schedule: naive"},
      {"shm", "false", "pipeline: 4, schedule: zb-h2, transport: shm"},
      {"tcp", "false", "pipeline: 4, schedule: 1f1b, transport: tcp"},
      // Sums over replicas are grouped differently, so these have bits of their own.
      {"replicas", "true", "pipeline: 1, data: 2, schedule: naive"},
      {"shards", "false", "pipeline: 2, data: 2, shard: optimizer, schedule: zb-h2"},
  };
  LossAndNorm with_barrier;
  for (const auto& [name, barrier, parallelism] : jobs) {
    std::string yaml = GptYaml(name, parallelism);
    yaml.replace(yaml.find("adamw: {"), 8,
                 absl::StrCat("barrier: ", barrier, ", adamw: {clip_norm: 0.01, "));
    cluster.Submit(yaml);
    const v1::Job job = cluster.AwaitEnd(name);
    ASSERT_EQ(job.state(), v1::JOB_STATE_SUCCEEDED) << parallelism << ": " << job.reason();
    const auto steps = cluster.Steps(name);
    ExpectEachStepOnce(steps, 6);
    if (barrier == std::string_view("true")) with_barrier = Curve(steps);
    EXPECT_EQ(Curve(steps), with_barrier) << parallelism;
  }
  EXPECT_THAT(cluster.StopAll(), IsEmpty());
}

// A mount is missing on one host for a while. The other worker sees the file, so the job is
// not wrong.
TEST(Job, AFileThatOneWorkerDoesNotSeeIsNoInvalidInput) {
  namespace fs = std::filesystem;
  std::string base = (fs::temp_directory_path() / "takt-roots-XXXXXX").string();
  ASSERT_NE(mkdtemp(base.data()), nullptr);
  for (const char* root : {"/whole", "/lacking"}) fs::create_directory(base + root);
  std::ofstream(base + "/whole/data.txt") << std::string(1 << 16, 'a');
  {
    Cluster cluster(2, {{"w0", testing::WorkerPlace{.root = base + "/whole"}},
                        {"w1", testing::WorkerPlace{.root = base + "/lacking"}}});
    cluster.Submit(*config::ParseJobFile(GptYaml("j", "pipeline: 2, schedule: 1f1b"), {}));
    const v1::Job again = cluster.AwaitJob(
        "j", [](const v1::Job& job) { return job.generation() > 1 || testing::HasEnded(job); });
    EXPECT_FALSE(testing::HasEnded(again)) << again.reason();
    std::string why;
    for (const v1::JobTransition& transition : again.transitions()) {
      if (transition.state() == v1::JOB_STATE_RECOVERING) why = transition.reason();
    }
    EXPECT_THAT(why, HasSubstr("worker w1"));
    EXPECT_THAT(why, HasSubstr("data.train.path is data.txt: must exist"));
    fs::copy_file(base + "/whole/data.txt", base + "/lacking/data.txt");
    const v1::Job ended = cluster.AwaitEnd("j");
    EXPECT_EQ(ended.state(), v1::JOB_STATE_SUCCEEDED) << ended.reason();
  }
  fs::remove_all(base);
}

TEST(Job, DataParallelReplicasTrainAlikeFromRunToRun) {
  Cluster cluster(4);
  LossAndNorm first;
  for (const std::string name : {"a", "b"}) {
    cluster.Submit(GptYaml(name, "pipeline: 2, data: 2, schedule: 1f1b"));
    const v1::Job job = cluster.AwaitEnd(name);
    ASSERT_EQ(job.state(), v1::JOB_STATE_SUCCEEDED) << job.reason();
    EXPECT_EQ(job.ranks_size(), 0) << "a job that ended holds no workers";
    const auto steps = cluster.Steps(name);
    ExpectEachStepOnce(steps, 6);
    EXPECT_EQ(steps.back().bubble_by_pp_rank_size(), 2);
    if (first.empty()) first = Curve(steps);
    EXPECT_EQ(Curve(steps), first);
  }
}

// What a plan chose for `auto` is what a job must name to have the same bits.
TEST(Job, WhatAPlanChoseForAutoIsInItsSpec) {
  Cluster cluster(2);
  std::string yaml = GptYaml("open", "data: auto, schedule: 1f1b");
  yaml.replace(yaml.find("microbatch: 2"), 13, "microbatch: auto");
  cluster.Submit(yaml);
  const v1::Job open = cluster.AwaitEnd("open");
  ASSERT_EQ(open.state(), v1::JOB_STATE_SUCCEEDED) << open.reason();
  const int data = open.spec().parallelism().data(), microbatch = open.spec().batch().microbatch();
  EXPECT_THAT(data, AnyOf(1, 2));
  ASSERT_GE(microbatch, 1);
  EXPECT_EQ(16 / data % microbatch, 0);
  v1::JobSpec named = open.spec();
  named.set_name("named");
  cluster.Submit(named);
  EXPECT_EQ(cluster.AwaitEnd("named").state(), v1::JOB_STATE_SUCCEEDED);
  EXPECT_EQ(Curve(cluster.Steps("named")), Curve(cluster.Steps("open")));
  EXPECT_EQ(cluster.Job("named").spec().batch().microbatch(), microbatch);
}

config::JobSpec AsynchronousJob(const std::string& schedule, const std::string& data) {
  config::JobSpec job;
  job.name = schedule;
  job.model = {.family = model::Family::kLlama,
               .layers = 4,
               .hidden = 16,
               .heads = 2,
               .kv_heads = 2,
               .inner = 32,
               .context = 16,
               .positions = 16,
               .vocab = 256,
               .tied_head = false};
  job.train = {{.path = data, .format = config::DataFormat::kBytes}};
  job.validation = {
      .path = data, .format = config::DataFormat::kBytes, .every_steps = 3, .batches = 2};
  job.shuffle = true;
  job.global_batch = 12;
  job.microbatch = 2;
  job.adamw.learning_rate = 3e-3;
  job.adamw.clip_norm = 0;
  job.steps = 6;
  job.seed = 7;
  job.parallelism = {.pipeline = 4, .data = 1, .chunks = 1, .threads = 1, .schedule = schedule};
  return job;
}

// In one process they have the bits of their recurrences (tests/numerics). Each validation empties
// the pipeline.
TEST(Job, AsynchronousSchedulesTrainAsInOneProcess) {
  Cluster cluster(4);
  for (const std::string schedule : {"pipedream", "pipedream-2bw"}) {
    const config::JobSpec job = AsynchronousJob(schedule, cluster.directory() + "/data.txt");
    cluster.Submit(config::ToProto(job));
    const v1::Job ended = cluster.AwaitEnd(schedule);
    ASSERT_EQ(ended.state(), v1::JOB_STATE_SUCCEEDED) << ended.reason();
    const auto steps = cluster.Steps(schedule);
    ExpectEachStepOnce(steps, job.steps);
    const auto expected =
        numerics::TrainInProcess({.job = job, .stop_every = job.validation->every_steps});
    ASSERT_TRUE(expected.ok()) << expected.status();
    for (std::size_t i = 0; i < steps.size(); ++i) {
      EXPECT_EQ(steps[i].loss(), expected->steps[i].loss) << schedule << ", step " << i + 1;
      EXPECT_EQ(steps[i].schedule(), schedule);
    }
    EXPECT_EQ(steps.back().validation_loss(), *expected->validation_loss) << schedule;
  }
}

// The tolerance is the README's of tests/golden/models.
TEST(Job, GoldenWeightsAndDataGiveTheGoldenLosses) {
  Cluster cluster(3);
  const numerics::GoldenCase golden = numerics::LoadGolden("gpt2-tiny");
  ASSERT_FALSE(golden.steps.empty());
  for (const int pipeline : {1, 3}) {
    config::JobSpec job = golden.job;
    job.name = absl::StrCat("golden-", pipeline);
    job.parallelism.pipeline = pipeline;
    job.parallelism.data = 1;
    job.parallelism.threads = 1;
    job.parallelism.schedule = "1f1b";
    cluster.Submit(config::ToProto(job));
    const v1::Job ended = cluster.AwaitEnd(job.name);
    ASSERT_EQ(ended.state(), v1::JOB_STATE_SUCCEEDED) << ended.reason();
    const auto steps = cluster.Steps(job.name);
    ExpectEachStepOnce(steps, 10);
    for (std::size_t i = 0; i < steps.size(); ++i) {
      EXPECT_NEAR(steps[i].loss(), golden.steps[i].loss, 1e-5) << "step " << i + 1;
      EXPECT_NEAR(steps[i].learning_rate(), golden.steps[i].learning_rate, 1e-12);
    }
  }
}

TEST(Job, GoldenTokensOfATokenFileGiveTheGoldenLosses) {
  Cluster cluster(2);
  const numerics::GoldenCase golden = numerics::LoadGolden("gpt2-tiny");
  ASSERT_FALSE(golden.steps.empty());
  config::JobSpec job = golden.job;
  job.name = "tokens";
  job.train = {{.path = golden.directory + "/tokens.bin", .format = config::DataFormat::kUint16}};
  job.parallelism.pipeline = 2;
  job.parallelism.data = 1;
  cluster.Submit(config::ToProto(job));
  const v1::Job ended = cluster.AwaitEnd(job.name);
  ASSERT_EQ(ended.state(), v1::JOB_STATE_SUCCEEDED) << ended.reason();
  const auto steps = cluster.Steps(job.name);
  ExpectEachStepOnce(steps, 10);
  for (std::size_t i = 0; i < steps.size(); ++i)
    EXPECT_NEAR(steps[i].loss(), golden.steps[i].loss, 1e-5);
}

TEST(Job, AMissingDataFileEndsItAsInvalidInput) {
  Cluster cluster(2);
  std::string yaml = GptYaml("missing", "pipeline: 2, schedule: 1f1b");
  yaml.replace(yaml.find("data.txt"), 8, "nope.txt");
  cluster.Submit(yaml);
  const v1::Job job = cluster.AwaitEnd("missing");
  EXPECT_EQ(job.state(), v1::JOB_STATE_FAILED);
  EXPECT_TRUE(job.invalid_input());
  EXPECT_THAT(job.reason(), HasSubstr("nope.txt"));
  ASSERT_EQ(job.violations_size(), 1);
  EXPECT_EQ(job.violations(0).field(), "data.train.path");
  EXPECT_THAT(job.violations(0).value(), HasSubstr("nope.txt"));
  EXPECT_NE(job.violations(0).fix(), "");
  cluster.AwaitIdle({"w0", "w1"});
  cluster.Submit(EmulatedJob{.name = "next", .pipeline = 2, .steps = 2}.Yaml());
  EXPECT_EQ(cluster.AwaitEnd("next").state(), v1::JOB_STATE_SUCCEEDED);
}

TEST(Job, CancelEndsARunningJobAndFreesItsWorkers) {
  Cluster cluster(2);
  cluster.Submit(EmulatedJob{.name = "long", .pipeline = 2, .steps = 1'000'000}.Yaml());
  cluster.AwaitStep("long", 3);
  cluster.Cancel("long");
  EXPECT_EQ(cluster.AwaitEnd("long").state(), v1::JOB_STATE_CANCELLED);
  cluster.AwaitIdle({"w0", "w1"});
}

}  // namespace
}  // namespace takt
