// SPDX-License-Identifier: Apache-2.0
// Plans of jobs whose replicas share experts.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "common/base/memory_kind.h"
#include "common/base/version.h"
#include "common/config/testing/jobs.h"
#include "common/plan/plan.h"
#include "common/plan/worker_programs.h"
#include "common/program/part_lists.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::plan {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

config::JobSpec ExpertJob(int expert) {
  config::JobSpec job = config::SmallGpt2Job();
  job.model.family = model::Family::kMixtral;
  job.model.kv_heads = 2;
  job.model.tied_head = false;
  job.model.mixture = model::Mixture{.experts = 8, .chosen = 2, .inner = 256};
  job.parallelism.pipeline = 2;
  job.parallelism.data = 4;
  job.parallelism.schedule = "1f1b";
  job.parallelism.expert = expert;
  return job;
}

std::int64_t MostOf(const Plan& plan, MemoryKind kind) {
  std::int64_t most = 0;
  for (const MemoryBytes& rank : plan.memory) most = std::max(most, rank[kind]);
  return most;
}

TEST(PlanWithExperts, HasThreeMeetingsInEveryPassOfABlock) {
  const Plan plan = MakePlan(ExpertJob(2), {.max_workers = 8}).value();
  EXPECT_EQ(mesh::ToString(plan.mesh), "2 x 4");
  for (const program::Program& program : plan.programs) {
    for (const program::PartList& list : program.part_lists) {
      for (const program::Part& part : list.parts)
        EXPECT_EQ(part.meets(), part.group == program::PartGroup::kExpert);
    }
    // Each block has F and B of two microbatches.
    std::size_t blocks = 0;
    for (const mesh::Stage& stage : plan.partition) {
      if (stage.pp_rank != program.pp_rank) continue;
      for (LayerId layer = stage.first_layer; layer < stage.last_layer; ++layer)
        blocks += model::HasExperts(plan.model.layers[layer.value()].kind) ? 1 : 0;
    }
    EXPECT_GT(blocks, 0U);
    EXPECT_EQ(NumMeetings(program), blocks * 2 * 2 * 3);
  }
  EXPECT_EQ(NumMeetings(MakePlan(ExpertJob(1), {.max_workers = 8})->programs.front()), 0U);
}

TEST(PlanWithExperts, HasPartOfTheWeightsAndAllGradients) {
  const Plan whole = MakePlan(ExpertJob(1), {.max_workers = 8}).value();
  const Plan shared = MakePlan(ExpertJob(4), {.max_workers = 8}).value();
  EXPECT_LT(MostOf(shared, MemoryKind::kWeights), MostOf(whole, MemoryKind::kWeights) / 2);
  EXPECT_LT(MostOf(shared, MemoryKind::kOptimizer), MostOf(whole, MemoryKind::kOptimizer) / 2);
  EXPECT_EQ(MostOf(shared, MemoryKind::kGradients), MostOf(whole, MemoryKind::kGradients));
  EXPECT_GT(MostOf(shared, MemoryKind::kStash), MostOf(whole, MemoryKind::kStash));
}

TEST(PlanWithExperts, CountsMeetingsAndTheRankWithTheMostRows) {
  PlanOptions options{.max_workers = 8, .link_latency_seconds = 0, .link_seconds_per_byte = 0};
  const double whole = MakePlan(ExpertJob(1), options)->predicted_step_seconds;
  const double uneven = MakePlan(ExpertJob(2), options)->predicted_step_seconds;
  EXPECT_GT(uneven, 1.05 * whole);
  EXPECT_LT(uneven, 1.3 * whole);
  PlanOptions measured = options;
  measured.expert_imbalance = 1.05;
  EXPECT_LT(MakePlan(ExpertJob(2), measured)->predicted_step_seconds, uneven);
  options.link_latency_seconds = 1e-3;
  EXPECT_GT(MakePlan(ExpertJob(2), options)->predicted_step_seconds,
            MakePlan(ExpertJob(1), options)->predicted_step_seconds + 20e-3);
}

TEST(PlanWithExperts, WarnsOfGroupsThatSpanHosts) {
  PlanOptions options{.max_workers = 8};
  options.host = {.machine = "a processor", .threads = 1, .workers = 2};
  EXPECT_THAT(MakePlan(ExpertJob(4), options)->warnings,
              Contains(AllOf(HasSubstr("parallelism.expert is 4, and hosts have 2 workers"),
                             HasSubstr("use larger hosts, or parallelism.expert: 2"))));
  EXPECT_THAT(MakePlan(ExpertJob(2), options)->warnings,
              Not(Contains(HasSubstr("parallelism.expert"))));
}

TEST(PlanWithExperts, GpusShareThem) {
  const PlanOptions options{.max_workers = 8, .device = config::DeviceKind::kCuda};
  const Plan whole = MakePlan(ExpertJob(1), options).value();
  const Plan shared = MakePlan(ExpertJob(4), options).value();
  EXPECT_LT(MostOf(shared, MemoryKind::kWeights), MostOf(whole, MemoryKind::kWeights) / 2);
  EXPECT_GT(NumMeetings(shared.programs.front()), 0U);
}

TEST(PlanWithExperts, GpusShareThemOnNewWorkersAlone) {
  const config::JobSpec job = ExpertJob(2);
  EXPECT_LT(NeededProtocol(job, config::DeviceKind::kCpu), kGpuExpertsProtocolVersion);
  EXPECT_EQ(NeededProtocol(job, config::DeviceKind::kCuda), kGpuExpertsProtocolVersion);
  const PlanOptions old{.max_workers = 8,
                        .device = config::DeviceKind::kCuda,
                        .oldest_protocol = kGpuExpertsProtocolVersion - 1};
  EXPECT_THAT(MakePlan(job, old).status().message(), HasSubstr("parallelism.expert: is not known"));
}

TEST(PlanWithExperts, SaysThatMemoryDoesNotSufficeWhereReplicasCannotShareMore) {
  const std::string refusal(
      MakePlan(ExpertJob(2), {.max_workers = 8, .worker_memory_bytes = 45 << 20})
          .status()
          .message());
  EXPECT_THAT(refusal, HasSubstr("memory"));
  EXPECT_THAT(refusal, Not(HasSubstr("shard: optimizer")));
}

}  // namespace
}  // namespace takt::plan
