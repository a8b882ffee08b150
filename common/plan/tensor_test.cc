// SPDX-License-Identifier: Apache-2.0
// Plans of jobs whose ranks share layers.
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/memory_kind.h"
#include "common/config/testing/jobs.h"
#include "common/cost/costs.h"
#include "common/model/vocabulary.h"
#include "common/plan/plan.h"
#include "common/profile/learn.h"
#include "common/program/part_lists.h"
#include "common/trace/testing/synthetic_trace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::plan {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// Each of `tensor` ranks passes on about 4,000 bytes before F and I of a layer, and after.
config::JobSpec SharedJob(int tensor) {
  config::JobSpec job = config::EmulatedJob(4, 8);
  job.parallelism.pipeline = 4;
  job.parallelism.tensor = tensor;
  job.parallelism.schedule = "1f1b";
  job.model.collective_bytes = std::int64_t{4000} / (tensor - 1) * tensor;
  return job;
}

// Meetings were measured: 1 ms on a host, 10 ms between hosts. Messages take no time.
PlanOptions Measured(int tensor) {
  PlanOptions options{.max_workers = 16, .link_latency_seconds = 0, .link_seconds_per_byte = 0};
  profile::Profile profile;
  for (const bool same_host : {true, false}) {
    profile.AddMeeting(profile::KeyOfMeeting(same_host, tensor, 4000),
                       {.bytes = 4000, .seconds = same_host ? 1e-3 : 10e-3});
  }
  options.profile = std::make_shared<const profile::Profile>(std::move(profile));
  return options;
}

TEST(PlanWithTensor, HasTheMeetingsInEveryPass) {
  const Plan plan = MakePlan(SharedJob(2), Measured(2)).value();
  EXPECT_EQ(mesh::ToString(plan.mesh), "4 x 1 x tensor 2");
  for (const program::Program& program : plan.programs) {
    EXPECT_EQ(NumMeetings(program), 8u * 2 * 2);  // F and B of each microbatch
  }
  // F takes 5 ms and B takes 10 ms, each with two meetings.
  EXPECT_NEAR(plan.predicted_step_seconds, 11 * (7e-3 + 12e-3), 1e-5);
  EXPECT_NEAR(plan.predicted_bubble_fraction, 1 - 8 * 15.0 / (11 * 19), 1e-3);
  EXPECT_THAT(plan.warnings, IsEmpty());
}

TEST(PlanWithTensor, CountsMeetingsAsCommunication) {
  const Forecasts forecasts = MakeForecasts(SharedJob(2), Measured(2), 1).value();
  const Parts& parts = forecasts.candidates.front().parts;
  EXPECT_NEAR(parts.compute, 8 * 15e-3, 1e-6);
  EXPECT_NEAR(parts.communication, 8 * 4e-3, 1e-6);
  EXPECT_NEAR(parts.schedule, 3 * 19e-3, 1e-4);
}

// F and B take 15 ms together and their meetings 4 ms, which only a pair hides.
TEST(PlanWithTensor, HasPairsWhereTheyHideMeetings) {
  config::JobSpec job = SharedJob(2);
  job.parallelism.pipeline = 2;
  job.parallelism.schedule = "auto";
  const Plan plan = MakePlan(job, Measured(2)).value();
  EXPECT_THAT(plan.schedule.name, HasSubstr("dualpipe-v"));
  EXPECT_LT(plan.predicted_step_seconds, 8 * 2 * 19e-3);
  PlanOptions on_gpus = Measured(2);  // there a half waits for the other one
  on_gpus.device = config::DeviceKind::kCuda;
  const Plan serial = MakePlan(job, on_gpus).value();
  EXPECT_THAT(serial.schedule.name, Not(HasSubstr("dualpipe")));
  EXPECT_FALSE(serial.costs.halves_run_beside);
  job.parallelism.tensor = 1;
  EXPECT_THAT(MakePlan(job, Measured(2))->schedule.name, Not(HasSubstr("dualpipe")));
}

// A rank with more layers than the others has them in pairs, too.
TEST(PlanWithTensor, MeetingsThatPairsHideHideNoImbalance) {
  config::JobSpec job = config::EmulatedJob(15, 8);
  job.parallelism.pipeline = 2;
  job.parallelism.schedule = "dualpipe-v";
  job.parallelism.stage_layers = {7, 3, 3, 2};
  job.model.collective_bytes = 8;
  const PlanOptions nearly_free{
      .max_workers = 16, .link_latency_seconds = 1e-9, .link_seconds_per_byte = 0};
  const auto parts_with = [&](int tensor) {
    job.parallelism.tensor = tensor;
    return MakeForecasts(job, nearly_free, 1).value().candidates.front().parts;
  };
  const Parts alone = parts_with(1);
  EXPECT_GT(alone.imbalance, 0.1 * alone.compute);
  const Parts shared = parts_with(2);
  EXPECT_NEAR(shared.imbalance, alone.imbalance, 1e-4 * alone.imbalance);
  EXPECT_NEAR(shared.lower_bound, alone.lower_bound, 1e-4 * alone.lower_bound);
}

TEST(PlanWithTensor, TakesAsManyWorkersAsItsMeshHasRanks) {
  config::JobSpec job = SharedJob(4);
  job.parallelism.pipeline.reset();
  EXPECT_LE(MakePlan(job, {.max_workers = 15})->mesh.pp_size, 3);
  EXPECT_EQ(MakePlan(job, {.max_workers = 16})->mesh.pp_size, 4);
}

TEST(PlanWithTensor, WarnsOfGroupsThatSpanHostsAndSaysWhatThatCosts) {
  PlanOptions options = Measured(4);
  options.host = {.machine = "a processor", .threads = 1, .workers = 2};
  const Plan plan = MakePlan(SharedJob(4), options).value();
  EXPECT_NEAR(plan.predicted_step_seconds, 11 * (25e-3 + 30e-3), 1e-4);
  EXPECT_THAT(plan.warnings,
              Contains(AllOf(HasSubstr("parallelism.tensor is 4, and hosts have 2 workers for the "
                                       "job: a step takes 0.605"),
                             HasSubstr("0.209 s if each tensor group is on one host; use larger "
                                       "hosts, or parallelism.tensor: 2"))));
  options.host.workers = 4;
  EXPECT_THAT(MakePlan(SharedJob(4), options)->warnings,
              Not(Contains(HasSubstr("parallelism.tensor"))));
}

TEST(PlanWithTensor, GuessesMeetingsFromMessages) {
  PlanOptions options{.max_workers = 16};
  options.link_latency_seconds = 2e-3;
  options.link_seconds_per_byte = 0;
  EXPECT_EQ(MakePlan(SharedJob(3), options)->costs.tensor.front().link.latency, 2e-3);
  profile::Profile profile;
  profile.AddMessage(profile::KeyOfMessage(true, 2000), {.bytes = 2000, .seconds = 1e-3});
  options.profile = std::make_shared<const profile::Profile>(std::move(profile));
  const cost::GroupCost group = MakePlan(SharedJob(3), options)->costs.tensor.front();
  EXPECT_EQ(group.size, 3);
  EXPECT_NEAR(cost::MeetingCost(group, 4000), 2e-3, 1e-9);
}

// A job whose layers of four heads can be shared by up to four ranks.
config::JobSpec OpenJob() {
  config::JobSpec job = config::SmallGpt2Job();
  job.parallelism.tensor_auto = true;
  job.parallelism.pipeline = 1;
  job.parallelism.schedule = "gpipe";
  return job;
}

TEST(PlanWithTensor, AutoSharesLayersWhileThatShortensTheStep) {
  PlanOptions options{.max_workers = 8, .link_latency_seconds = 0, .link_seconds_per_byte = 0};
  const Plan shared = MakePlan(OpenJob(), options).value();
  EXPECT_EQ(shared.mesh.tp_size, 4);
  EXPECT_EQ(shared.model.tensor.size, 4);
  options.link_latency_seconds = 1;
  const Plan alone = MakePlan(OpenJob(), options).value();
  EXPECT_EQ(alone.mesh.tp_size, 1);
  EXPECT_LT(shared.predicted_step_seconds, alone.predicted_step_seconds / 2);
}

TEST(PlanWithTensor, AutoSaysWhyLayersCannotBeSharedByMore) {
  const Forecasts forecasts = MakeForecasts(OpenJob(), {.max_workers = 16}, 1).value();
  std::vector<std::string> reasons;
  for (const Refusal& refusal : forecasts.refused) {
    if (refusal.mesh.tp_size > 4) reasons.push_back(refusal.reason);
  }
  ASSERT_EQ(reasons.size(), 2U);  // 8 and 16
  EXPECT_THAT(reasons[0], HasSubstr("is 8: must divide model.heads (4); use at most 4"));
}

TEST(PlanWithTensor, AutoKeepsGroupsOnHosts) {
  const PlanOptions options{.max_workers = 8,
                            .host = {.machine = "a processor", .threads = 1, .workers = 2},
                            .link_latency_seconds = 0,
                            .link_seconds_per_byte = 0};
  EXPECT_EQ(MakePlan(OpenJob(), options)->mesh.tp_size, 2);
}

TEST(PlanWithTensor, AutoIsOneWhereLayersCannotBeSplit) {
  const PlanOptions options{
      .max_workers = 8, .link_latency_seconds = 0, .link_seconds_per_byte = 0};
  const auto size = [](const config::JobSpec& job, const PlanOptions& given) {
    const absl::StatusOr<Plan> plan = MakePlan(job, given);
    EXPECT_TRUE(plan.ok()) << plan.status();
    return plan.ok() ? plan->mesh.tp_size : 0;
  };
  for (const char* const schedule : {"pipedream-2bw", "dualpipe"}) {
    SCOPED_TRACE(schedule);
    config::JobSpec job = OpenJob();
    job.adamw.clip_norm = 0;
    job.parallelism.pipeline = 2;
    job.parallelism.schedule = schedule;
    EXPECT_EQ(size(job, options), 1);
  }
  PlanOptions other = options;
  other.oldest_protocol = kAllWaysProtocolVersion - 1;
  EXPECT_EQ(size(OpenJob(), other), 1);
}

TEST(PlanWithTensor, AutoKeepsTheLeavesThatTheJobNames) {
  config::JobSpec job = OpenJob();
  job.parallelism.tensor_leaves = 2;
  const Plan plan =
      MakePlan(job, {.max_workers = 8, .link_latency_seconds = 0, .link_seconds_per_byte = 0})
          .value();
  EXPECT_EQ(plan.mesh.tp_size, 2);
  EXPECT_EQ(plan.model.tensor.leaves, 2);
}

TEST(PlanWithTensor, IsRefusedWhereAWorkersProgramDoesNotKnowIt) {
  config::JobSpec job = SharedJob(2);
  const PlanOptions old{.max_workers = 16, .oldest_protocol = kAllFieldsProtocolVersion - 1};
  EXPECT_THAT(std::string(MakePlan(job, old).status().message()),
              HasSubstr("parallelism.tensor: is not known to a worker"));
  job = OpenJob();
  job.parallelism.tensor_auto = false;
  job.parallelism.tensor_leaves = 4;
  EXPECT_THAT(std::string(MakePlan(job, old).status().message()),
              HasSubstr("parallelism.tensor_leaves: is not known to a worker"));
}

TEST(PlanWithTensor, IsRefusedWhereAWorkersProgramPassesRowsInAnotherWay) {
  PlanOptions old{.max_workers = 16, .oldest_protocol = kAllWaysProtocolVersion - 1};
  EXPECT_THAT(std::string(MakePlan(SharedJob(2), old).status().message()),
              HasSubstr("parallelism.tensor: is not known to a worker"));
  config::JobSpec leaves = OpenJob();
  leaves.parallelism.tensor_auto = false;
  leaves.parallelism.tensor_leaves = 4;
  EXPECT_TRUE(MakePlan(leaves, old).ok());
  old.device = config::DeviceKind::kCuda;
  EXPECT_THAT(std::string(MakePlan(leaves, old).status().message()),
              HasSubstr("parallelism.tensor_leaves: is not known to a worker"));
}

TEST(PlanWithTensor, EmulatedLayersDoNotBecomeShorterSoAutoIsOne) {
  config::JobSpec job = SharedJob(2);
  job.parallelism.tensor = 1;
  job.parallelism.tensor_auto = true;
  EXPECT_EQ(MakePlan(job, Measured(2))->mesh.tp_size, 1);
}

TEST(PlanWithTensor, ItsMeetingsAreLearnedFromTraces) {
  const Plan plan = MakePlan(SharedJob(2), Measured(2)).value();
  trace::SyntheticTrace synthetic(plan.programs, {.tp_size = 2, .meeting = 3e-3});
  profile::Profile profile;
  const std::vector<profile::RankPlace> places(plan.mesh.size(), {.host = "host"});
  ASSERT_TRUE(profile::Learn(synthetic.Get(),
                             {.model = plan.model, .partition = plan.partition, .places = places},
                             1, profile)
                  .ok());
  EXPECT_EQ(profile.meetings().size(), 1u);
  EXPECT_NEAR(profile.FindMeeting(true, 2, 4000).value(), 3e-3, 1e-6);
  EXPECT_FALSE(profile.FindMeeting(false, 2, 4000).has_value());
}

// A job whose layers ranks split, not an emulated one.
config::JobSpec SplitJob() {
  config::JobSpec job = config::SmallGpt2Job();
  job.model.vocab = 3 * static_cast<int>(model::kVocabularyBlock);
  job.parallelism.pipeline = 2;
  job.parallelism.data = 1;
  job.parallelism.tensor = 2;
  job.parallelism.schedule = "1f1b";
  job.parallelism.vocabulary = config::Vocabulary::kLast;
  return job;
}

TEST(PlanWithTensor, SplitLayersTakeLessMemoryOfEachRank) {
  config::JobSpec job = SplitJob();
  const Plan split = MakePlan(job, {.max_workers = 4}).value();
  EXPECT_EQ(mesh::ToString(split.mesh), "2 x 1 x tensor 2");
  EXPECT_TRUE(split.vocabulary_ends.empty());
  job.parallelism.tensor = 1;
  const Plan whole = MakePlan(job, {.max_workers = 2}).value();
  for (const MemoryKind kind :
       {MemoryKind::kWeights, MemoryKind::kOptimizer, MemoryKind::kMessages}) {
    EXPECT_LT(split.memory[0][kind], whole.memory[0][kind]);
  }
}

TEST(PlanWithTensor, FewerWorkersLeaveFewerReplicasAndAsManyRanksOfALayer) {
  config::JobSpec job = SplitJob();
  job.parallelism.data.reset();
  job.elastic.data = config::SizeRange{.min = 1, .max = 2};
  PlanOptions options{.max_workers = 8, .link_latency_seconds = 0, .link_seconds_per_byte = 0};
  EXPECT_EQ(mesh::ToString(MakePlan(job, options)->mesh), "2 x 2 x tensor 2");
  options.max_workers = 7;
  EXPECT_EQ(mesh::ToString(MakePlan(job, options)->mesh), "2 x 1 x tensor 2");
}

// The coordinator asks this before it plans a job again.
TEST(PlanWithTensor, IsPredictedAgainFromItsPlan) {
  const PlanOptions options{.max_workers = 4};
  const Plan plan = MakePlan(SplitJob(), options).value();
  EXPECT_DOUBLE_EQ(PredictStep(SplitJob(), options, plan).value(), plan.predicted_step_seconds);
}

TEST(PlanWithTensor, RunsSchedulesOfFiles) {
  config::JobSpec job = SplitJob();
  job.parallelism.pipeline = 1;
  job.parallelism.schedule = "file:one.csv";
  job.global_batch = job.microbatch;
  job.parallelism.schedule_csv = "0F0,0B0\n";
  const Plan plan = MakePlan(job, {.max_workers = 8}).value();
  EXPECT_EQ(mesh::ToString(plan.mesh), "1 x 1 x tensor 2");
  // F and B of the embedding, of eight blocks and of the head, then the sums before the norm.
  EXPECT_EQ(NumMeetings(plan.programs.front()), (1u + 8 * 4 + 2) + (1u + 8 * 4 + 1) + 1);
}

TEST(PlanWithTensor, RefusesWhatSplitLayersCannotDoYet) {
  const auto error = [](const config::JobSpec& job) {
    return std::string(MakePlan(job, {.max_workers = 8}).status().message());
  };
  const auto under = [&](const char* schedule) {
    config::JobSpec job = SplitJob();
    job.adamw.clip_norm = 0;
    job.parallelism.schedule = schedule;
    return error(job);
  };
  EXPECT_THAT(under("pipedream-2bw"), HasSubstr("parallelism.tensor is 2: must be 1 under"));
  EXPECT_THAT(under("dualpipe"), HasSubstr("which has two copies of the weights"));
  config::JobSpec spread = SplitJob();
  spread.parallelism.vocabulary = config::Vocabulary::kSpread;
  EXPECT_THAT(error(spread), HasSubstr("share the vocabulary"));
  config::JobSpec shards = SplitJob();
  shards.parallelism.data = 2;
  shards.parallelism.tensor_leaves = 4;
  shards.parallelism.shard = config::Shard::kOptimizer;
  EXPECT_THAT(error(shards), HasSubstr("use tensor_leaves: 2"));
}

// In bf16 a GPU keeps half of what a leaf computes, and needs memory to round gradients.
TEST(PlanWithTensor, SplitsLayersOverGpus) {
  config::JobSpec job = SplitJob();
  job.precision = config::Precision::kBf16;
  const Plan cores = MakePlan(job, {.max_workers = 4}).value();
  const Plan gpus = MakePlan(job, {.max_workers = 4, .device = config::DeviceKind::kCuda}).value();
  EXPECT_EQ(mesh::ToString(gpus.mesh), "2 x 1 x tensor 2");
  EXPECT_EQ(NumMeetings(gpus.programs.front()), NumMeetings(cores.programs.front()));
  EXPECT_LT(gpus.memory[0][MemoryKind::kStash], cores.memory[0][MemoryKind::kStash]);
  EXPECT_GT(gpus.memory[0][MemoryKind::kScratch], cores.memory[0][MemoryKind::kScratch]);
}

// Their meetings are guessed from their messages until they are timed.
TEST(PlanWithTensor, AutoSharesLayersOfGpus) {
  PlanOptions options{.max_workers = 8, .device = config::DeviceKind::kCuda};
  options.link_latency_seconds = options.link_seconds_per_byte = 0;
  EXPECT_EQ(MakePlan(OpenJob(), options)->mesh.tp_size, 4);
  options.link_latency_seconds = 1;
  EXPECT_EQ(MakePlan(OpenJob(), options)->mesh.tp_size, 1);
}

}  // namespace
}  // namespace takt::plan
