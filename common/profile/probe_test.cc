// SPDX-License-Identifier: Apache-2.0
#include "common/profile/probe.h"

#include "common/plan/plan.h"
#include "gtest/gtest.h"

namespace takt::profile {
namespace {

config::JobSpec Job(model::Family family, int layers) {
  config::JobSpec job{.name = "job"};
  job.model = {.family = family,
               .layers = layers,
               .hidden = 64,
               .heads = 4,
               .kv_heads = 4,
               .inner = 256,
               .context = 32,
               .positions = 32,
               .vocab = 100};
  job.global_batch = 8;
  job.steps = 1000;
  job.parallelism.pipeline = 2;
  job.validation = {.path = "held_out.bin", .every_steps = 10};
  job.checkpoint = {.directory = "checkpoints"};
  job.replan = config::Replan::kAtCheckpoint;
  return job;
}

TEST(ProbeJob, HasAStageForEachKindOfLayer) {
  for (const auto family : {model::Family::kGpt2, model::Family::kLlama}) {
    const config::JobSpec probe = ProbeJob(Job(family, 12), {.num_ranks = 2});
    const auto plan = plan::MakePlan(probe, {.max_workers = 2});
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_EQ(plan->mesh.pp_size, 1);
    EXPECT_EQ(plan->mesh.dp_size, 2);
    ASSERT_EQ(plan->partition.size(), 3);
    EXPECT_EQ(plan->partition[0].last_layer, LayerId(1));
    EXPECT_EQ(plan->partition[1].last_layer, LayerId(3));
    EXPECT_EQ(plan->partition[2].last_layer, LayerId(4));
  }
}

TEST(ProbeJob, LeavesNothingBehind) {
  config::JobSpec job = Job(model::Family::kGpt2, 1);
  job.groups = {{.parameters = "transformer.h.11.*"}};
  job.error_feedback = 1;
  const config::JobSpec probe = ProbeJob(job, {});
  EXPECT_EQ(probe.error_feedback, 0) << "its schedule flushes";
  EXPECT_EQ(probe.model.layers, 1);
  EXPECT_TRUE(probe.groups.empty()) << "the probe may have fewer blocks";
  EXPECT_FALSE(probe.checkpoint.has_value());
  EXPECT_EQ(probe.replan, config::Replan::kNever) << "it needs checkpoints";
  EXPECT_FALSE(probe.validation.has_value());
}

TEST(ProbeJob, TakesAboutTheTimeItMay) {
  config::JobSpec job = Job(model::Family::kGpt2, 12);
  EXPECT_EQ(ProbeJob(job, {.target_seconds = 1000}).steps, 200);
  job.model.hidden = 8192;
  job.model.inner = 4 * 8192;
  EXPECT_EQ(ProbeJob(job, {.target_seconds = 1}).steps, 6);
}

TEST(ProbeJob, RecomputesAsTheJobDoes) {
  config::JobSpec job = Job(model::Family::kGpt2, 12);
  job.parallelism.recompute = {model::Recompute::kFull};
  EXPECT_EQ(ProbeJob(job, {}).parallelism.recompute, job.parallelism.recompute);
}

}  // namespace
}  // namespace takt::profile
