// SPDX-License-Identifier: Apache-2.0
#include "common/plan/plan.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/base/version.h"
#include "common/config/testing/jobs.h"
#include "common/plan/offers.h"
#include "common/plan/testing/plans.h"
#include "common/plan/worker_programs.h"
#include "common/program/slot_bytes.h"
#include "common/schedule/generate.h"
#include "common/schedule/text.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::plan {
namespace {

using config::EmulatedJob;
using config::SmallGpt2Job;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

// A step takes M + P - 1 slots of F + B = 15 ms, with a bubble of (P-1)/(M+P-1).
TEST(MakePlan, PredictsWhatTheSchedulesFormulaSays) {
  config::JobSpec job = EmulatedJob(4, 8);
  job.parallelism.pipeline = 4;
  job.parallelism.schedule = "1f1b";
  const Plan plan = *MakePlan(job, kFourWithFreeLinks);
  EXPECT_NEAR(plan.predicted_step_seconds, 11 * 15e-3, 1e-9);
  EXPECT_NEAR(plan.predicted_bubble_fraction, 3.0 / 11, 1e-9);
  EXPECT_THAT(plan.programs, SizeIs(4));
  EXPECT_THAT(plan.validation_programs, IsEmpty());
}

TEST(MakePlan, AutoPipelineTakesNoMoreRanksThanHelp) {
  config::JobSpec job = EmulatedJob(6, 200);
  job.parallelism.schedule = "1f1b";
  // With 4 or 5 ranks there is still a stage of two layers, as with 3.
  EXPECT_EQ(MakePlan(job, {.max_workers = 5})->mesh.pp_size, 3);
  EXPECT_EQ(MakePlan(job, {.max_workers = 6})->mesh.pp_size, 6);
  // A second microbatch is not worth a second rank whose messages take longer than its work.
  job.global_batch = 1;
  EXPECT_EQ(MakePlan(job, {.max_workers = 6, .link_latency_seconds = 1})->mesh.pp_size, 1);
}

TEST(MakePlan, AutoHasNoChunksOnOneRank) {
  config::JobSpec job = EmulatedJob(8, 8);
  EXPECT_EQ(MakePlan(job, {.max_workers = 1})->partition.size(), 1u);
  job.parallelism.chunks = 2;
  EXPECT_EQ(MakePlan(job, {.max_workers = 1})->partition.size(), 2u);
}

TEST(MakePlan, AutoPipelineTakesAsManyRanksAsLayersAndWorkersAllow) {
  const auto ranks = [](int layers, int max_workers, int data) {
    config::JobSpec job = EmulatedJob(layers, 24);
    job.parallelism.data = data;
    return MakePlan(job, {.max_workers = max_workers})->mesh.pp_size;
  };
  EXPECT_EQ(ranks(3, 8, 1), 3);
  EXPECT_EQ(ranks(8, 4, 1), 4);
  EXPECT_EQ(ranks(8, 4, 2), 2);
  EXPECT_EQ(ranks(8, 0, 1), 1);
}

TEST(MakePlan, AutoPipelineShrinksUntilTheScheduleFits) {
  config::JobSpec job = EmulatedJob(8, 2);
  job.parallelism.schedule = "interleaved-1f1b";
  EXPECT_EQ(MakePlan(job, {.max_workers = 4})->mesh.pp_size, 2);
  job = EmulatedJob(8, 8);
  job.parallelism.stage_layers = {1, 2, 5};
  EXPECT_EQ(MakePlan(job, {.max_workers = 8})->mesh.pp_size, 3);
}

TEST(MakePlan, AGivenPipelineMayWaitForWorkers) {
  config::JobSpec job = EmulatedJob(8, 8);
  job.parallelism.pipeline = 8;
  EXPECT_EQ(MakePlan(job, {.max_workers = 1})->mesh.pp_size, 8);
}

double SumOf(const Parts& parts) {
  return parts.compute + parts.imbalance + parts.communication + parts.sync + parts.schedule;
}

TEST(MakeForecasts, BeginWithWhatMakePlanTakesAndGoOnByTheirSteps) {
  config::JobSpec job = SmallGpt2Job();
  const PlanOptions options{.max_workers = 4};
  const Plan plan = *MakePlan(job, options);
  const Forecasts forecasts = *MakeForecasts(job, options, 8);
  ASSERT_TRUE(forecasts.fits.ok());
  ASSERT_THAT(forecasts.candidates, SizeIs(8));
  EXPECT_EQ(forecasts.candidates[0].plan.schedule.name, plan.schedule.name);
  EXPECT_EQ(forecasts.candidates[0].plan.mesh.pp_size, plan.mesh.pp_size);
  for (std::size_t i = 2; i < forecasts.candidates.size(); ++i) {
    EXPECT_LE(forecasts.candidates[i - 1].plan.predicted_step_seconds,
              forecasts.candidates[i].plan.predicted_step_seconds);
  }
  for (const Forecast& forecast : forecasts.candidates) {
    const Parts& parts = forecast.parts;
    EXPECT_NEAR(SumOf(parts), forecast.plan.predicted_step_seconds, 1e-12);
    EXPECT_LE(parts.lower_bound, forecast.plan.predicted_step_seconds * (1 + 1e-9));
    // Differences that are only rounding are no time.
    for (const double part : {parts.imbalance, parts.communication, parts.sync, parts.schedule}) {
      EXPECT_TRUE(part == 0 || std::abs(part) > 1e-9 * forecast.plan.predicted_step_seconds)
          << part;
    }
  }
}

TEST(MakeForecasts, TellSumsOverReplicasFromTheSchedule) {
  config::JobSpec job = SmallGpt2Job();
  job.parallelism = {.pipeline = 2, .data = 2, .schedule = "1f1b"};
  PlanOptions options{.max_workers = 4, .host = {.workers = 4}, .link_seconds_per_byte = 0};
  EXPECT_EQ(MakeForecasts(job, options, 1)->candidates[0].parts.sync, 0);
  auto profile = std::make_shared<profile::Profile>();
  profile->AddSum({.same_host = true, .num_ranks = 2}, 1e-6);
  options.profile = profile;
  const Forecast with_sums = MakeForecasts(job, options, 1)->candidates[0];
  // The first stage's gradients of the embedding are complete at the end of the step, so at least
  // their sum is seen.
  EXPECT_GE(with_sums.parts.sync, 256 * 64 * sizeof(float) * 1e-6);
  EXPECT_NEAR(SumOf(with_sums.parts), with_sums.plan.predicted_step_seconds, 1e-12);
}

TEST(MakeForecasts, SayWhyTheyLeaveWaysOut) {
  config::JobSpec job = SmallGpt2Job();
  job.parallelism.pipeline = 4;
  const Forecasts forecasts = *MakeForecasts(job, {.max_workers = 4}, 1);
  const auto reason = [&](std::string_view schedule) -> std::string {
    for (const Refusal& refusal : forecasts.refused) {
      if (refusal.schedule == schedule) return refusal.reason;
    }
    return "";
  };
  EXPECT_THAT(reason("dualpipe"), HasSubstr("two copies of the weights"));
  EXPECT_EQ(reason("1f1b"), "");
}

TEST(MakeForecasts, OfAJobThatFitsNowhereSayWhatItLacks) {
  const Forecasts forecasts =
      *MakeForecasts(SmallGpt2Job(), {.max_workers = 4, .worker_memory_bytes = 1000}, 5);
  EXPECT_THAT(forecasts.candidates, IsEmpty());
  EXPECT_THAT(FieldErrorsOf(forecasts.fits), SizeIs(1));
  EXPECT_FALSE(forecasts.refused.empty());
  for (const Refusal& refusal : forecasts.refused) EXPECT_FALSE(refusal.reason.empty());
}

TEST(MakeForecasts, RefuseWhatNeedsMoreWorkersThanThereAre) {
  config::JobSpec job = SmallGpt2Job();
  job.parallelism = {.pipeline = 2, .data = 4, .schedule = "1f1b"};
  const Forecasts forecasts = *MakeForecasts(job, {.max_workers = 1}, 5);
  EXPECT_THAT(forecasts.candidates, IsEmpty());
  ASSERT_FALSE(forecasts.refused.empty());
  EXPECT_EQ(forecasts.refused.front().reason, "needs 8 workers, and there is 1");
  EXPECT_THAT(forecasts.refused.front().stage_layers, SizeIs(2));
  EXPECT_EQ(forecasts.fits.message(),
            "parallelism.data is 4: makes a mesh of 2 x 4, which needs 8 workers, and there is 1; "
            "use fewer ranks or more workers");
  EXPECT_THAT(MakeForecasts(job, {.max_workers = 8}, 5)->candidates, SizeIs(1));
  EXPECT_TRUE(MakePlan(job, {.max_workers = 1}).ok()) << "it may wait for workers";
}

TEST(MakePlan, AutoScheduleIsNeverSlowerThanAFamily) {
  for (const int microbatches : {1, 2, 4, 8, 12}) {
    config::JobSpec job = EmulatedJob(8, microbatches);
    job.parallelism.pipeline = 4;
    const double best = MakePlan(job, kFourWithFreeLinks)->predicted_step_seconds;
    for (const schedule::Family& family : schedule::Families()) {
      if (family.updates != schedule::Updates::kFlush) continue;
      // Two copies of the weights, whose sums have other bits, are taken only if a job names them.
      if (family.placement == schedule::Placement::kBidirectional) continue;
      job.parallelism.schedule = std::string(family.name);
      const absl::StatusOr<Plan> plan = MakePlan(job, kFourWithFreeLinks);
      if (!plan.ok()) continue;
      EXPECT_LE(best, plan->predicted_step_seconds * 1.01) << family.name << " " << microbatches;
    }
  }
}

// With one stage a rank zb-h1 and zb-h2 take equally long. zb-h1 holds 4 microbatches, zb-h2 holds
// 7.
TEST(MakePlan, AutoScheduleTakesTheSmallerOfEquals) {
  config::JobSpec job = EmulatedJob(4, 16);
  job.parallelism.pipeline = 4;
  job.parallelism.chunks = 1;
  EXPECT_EQ(MakePlan(job, kFourWithFreeLinks)->schedule.name, "zb-h1");
}

TEST(MakePlan, FamiliesThatLookAtCostsSeeThoseOfTheJob) {
  config::JobSpec job = EmulatedJob(4, 8);
  job.model.input_grad_seconds *= 3;
  job.parallelism.pipeline = 4;
  job.parallelism.schedule = "zb-1p";
  const schedule::Schedule of_equal_costs =
      *schedule::Generate("zb-1p", {.num_ranks = 4, .num_microbatches = 8});
  EXPECT_NE(MakePlan(job, kFourWithFreeLinks)->schedule.ranks, of_equal_costs.ranks);
}

TEST(MakePlan, KeepsTheStagesThatTheJobNames) {
  config::JobSpec job = SmallGpt2Job();
  job.parallelism = {.pipeline = 2, .schedule = "gpipe", .stage_layers = {5, 3}};
  const Plan plan = *MakePlan(job, {});
  ASSERT_THAT(plan.partition, SizeIs(2));
  EXPECT_EQ(plan.partition[1].first_layer, LayerId(6));
  EXPECT_EQ(plan.partition[1].last_layer, LayerId(10));
}

TEST(MakePlan, MakesValidationProgramsWhenTheJobValidates) {
  config::JobSpec job = SmallGpt2Job();
  job.parallelism.pipeline = 2;
  job.validation = config::Validation{.path = "v"};
  const Plan plan = *MakePlan(job, {});
  ASSERT_THAT(plan.validation_programs, SizeIs(2));
  EXPECT_LT(plan.validation_programs[0].body.size(), plan.programs[0].body.size());
}

std::string Csv(const std::string& family, int ranks, int microbatches) {
  return schedule::FormatCsv(
      *schedule::Generate(family, {.num_ranks = ranks, .num_microbatches = microbatches}));
}

// A program that does not know a field would train otherwise than the job says.
TEST(MakePlan, RefusesWhatAWorkersProgramDoesNotKnow) {
  const PlanOptions old = {.oldest_protocol = kAllFieldsProtocolVersion - 1};
  const auto error_of = [&](const config::JobSpec& job) {
    EXPECT_TRUE(MakePlan(job, {}).ok());
    return std::string(MakePlan(job, old).status().message());
  };
  EXPECT_EQ(error_of(SmallGpt2Job()), "");
  config::JobSpec job = SmallGpt2Job();
  job.lion = config::Lion();
  EXPECT_EQ(error_of(job),
            "optimizer.lion: is not known to a worker, whose program is too old; upgrade "
            "takt-worker, or remove it");
  job.lion = std::nullopt;
  job.muon = config::Muon();
  EXPECT_THAT(error_of(job), HasSubstr("optimizer.muon: "));
  job.muon = std::nullopt;
  job.groups = {{.parameters = "*.bias"}};
  EXPECT_THAT(error_of(job), HasSubstr("optimizer.groups: "));
  job.groups.clear();
  job.lr_schedule.decay = config::LrDecay::kLinear;
  EXPECT_THAT(error_of(job), HasSubstr("optimizer.lr_schedule.decay: "));
  job.lr_schedule = {};
  job.loss.z_loss = 1e-4;
  EXPECT_THAT(error_of(job), HasSubstr("loss: "));
  job.loss = {};
  job.fp8 = model::Fp8Recipe::kTensor;
  job.precision = config::Precision::kBf16;
  EXPECT_THAT(error_of(job), HasSubstr("precision: "));
  job.fp8 = model::Fp8Recipe::kNone;
  job.sgd = config::Sgd{.learning_rate = 0, .momentum = 0, .clip_norm = 0};
  job.evaluation = config::Evaluation{};
  EXPECT_THAT(error_of(job), HasSubstr("evaluate: "));
  job.sgd = std::nullopt;
  job.evaluation = std::nullopt;
  job.model.family = model::Family::kMixtral;
  job.model.mixture = model::Mixture{.experts = 4, .chosen = 2, .inner = job.model.inner};
  EXPECT_THAT(error_of(job), HasSubstr("model.family: "));
}

TEST(MakePlan, RoundsTheResidualStreamOfGpusOnNewWorkersAlone) {
  config::JobSpec job = SmallGpt2Job();
  job.precision = job.residual = config::Precision::kBf16;
  EXPECT_EQ(NeededProtocol(job, config::DeviceKind::kCpu), kResidualProtocolVersion);
  job.fp8 = model::Fp8Recipe::kTensor;
  EXPECT_EQ(NeededProtocol(job, config::DeviceKind::kCuda), kBf16StreamProtocolVersion);
  const PlanOptions old{.max_workers = 4,
                        .device = config::DeviceKind::kCuda,
                        .oldest_protocol = kBf16StreamProtocolVersion - 1};
  EXPECT_THAT(MakePlan(job, old).status().message(), HasSubstr("residual: is not known"));
}

TEST(MakePlan, ReadsWeightsAsTheyAreStoredOnNewWorkersAlone) {
  config::JobSpec job = SmallGpt2Job();
  job.precision = config::Precision::kBf16;
  EXPECT_LT(NeededProtocol(job, config::DeviceKind::kCpu), kStoredWeightsProtocolVersion);
  EXPECT_EQ(NeededProtocol(job, config::DeviceKind::kCuda), kStoredWeightsProtocolVersion);
  const PlanOptions old{.max_workers = 4,
                        .device = config::DeviceKind::kCuda,
                        .oldest_protocol = kStoredWeightsProtocolVersion - 1};
  EXPECT_THAT(MakePlan(job, old).status().message(), HasSubstr("precision: is not known"));
}

TEST(MakePlan, CutsTheRowsOfTheHeadOnNewWorkersAlone) {
  config::JobSpec job = SmallGpt2Job();
  EXPECT_LT(NeededProtocol(job, config::DeviceKind::kCuda), kHeadSlicesProtocolVersion);
  job.model.vocab = 1 << 17;
  job.model.context = job.model.positions = 1500;  // two sequences a microbatch
  EXPECT_LT(NeededProtocol(job, config::DeviceKind::kCpu), kHeadSlicesProtocolVersion);
  EXPECT_EQ(NeededProtocol(job, config::DeviceKind::kCuda), kHeadSlicesProtocolVersion);
  const PlanOptions old{.max_workers = 4,
                        .device = config::DeviceKind::kCuda,
                        .oldest_protocol = kHeadSlicesProtocolVersion - 1};
  EXPECT_THAT(MakePlan(job, old).status().message(), HasSubstr("batch.microbatch: is not known"));
}

// Only where B follows F at once do logits leave the stash.
TEST(MakePlan, KeepsNoLogitsOnGpusWhereBackwardsFollowForwardsAtOnce) {
  config::JobSpec job = SmallGpt2Job();
  job.model.vocab = 1 << 17;  // 32 blocks
  job.model.context = job.model.positions = 1500;
  job.parallelism.pipeline = 2;
  job.parallelism.vocabulary = config::Vocabulary::kLast;
  const auto last_stash = [&](const char* schedule, config::DeviceKind device) {
    job.parallelism.schedule = schedule;
    const absl::StatusOr<Plan> plan = MakePlan(job, {.max_workers = 2, .device = device});
    EXPECT_TRUE(plan.ok()) << plan.status();
    std::int64_t bytes = 0;  // of one slot
    for (const program::Slot& slot : plan->programs.back().slots) {
      if (slot.kind == program::SlotKind::kStash) bytes = slot.bytes;
    }
    return bytes;
  };
  const std::int64_t kept = last_stash("gpipe", config::DeviceKind::kCuda);
  const std::int64_t rows = 2 * 1500;
  EXPECT_EQ(kept, last_stash("1f1b", config::DeviceKind::kCpu));
  EXPECT_EQ(kept - last_stash("1f1b", config::DeviceKind::kCuda),
            (std::int64_t{4} * job.model.vocab + 33 * 16) * rows);
}

TEST(MakePlan, MergesWeightGradsOfAJobThatNeedNotBeExact) {
  config::JobSpec job = SmallGpt2Job();
  job.parallelism.pipeline = 4;
  job.parallelism.schedule = "zb-h2";
  const Plan exact = *MakePlan(job, {.max_workers = 4});
  job.exact = false;
  const Plan plan = *MakePlan(job, {.max_workers = 4});
  EXPECT_THAT(ToString(plan), HasSubstr("of 32 W of a step, those that follow each other are one: "
                                        "20 are left (exact: false)"));
  EXPECT_THAT(ToString(exact), Not(HasSubstr("exact")));
  // There are as many slots, and they are as large. Those that share an allocation are rounded up
  // to huge pages together.
  for (std::size_t rank = 0; rank < plan.programs.size(); ++rank) {
    EXPECT_EQ(program::CountSlotBytes(plan.programs[rank]).total,
              program::CountSlotBytes(exact.programs[rank]).total);
    EXPECT_EQ(plan.memory[rank][MemoryKind::kWeights], exact.memory[rank][MemoryKind::kWeights]);
  }
  EXPECT_DOUBLE_EQ(plan.predicted_step_seconds, exact.predicted_step_seconds);
  EXPECT_THAT(plan.warnings, IsEmpty());

  job.parallelism.schedule = "1f1b";
  EXPECT_THAT(MakePlan(job, {.max_workers = 4})->warnings,
              ElementsAre("exact: false has no effect under 1f1b, where no two W of a stage follow "
                          "each other"));
}

TEST(MakePlan, RunsTheUsersOwnSchedule) {
  config::JobSpec job = SmallGpt2Job();
  job.parallelism.schedule = "file:my.csv";
  job.parallelism.schedule_csv = Csv("interleaved-1f1b", 4, 8);
  const Plan plan = *MakePlan(job, {.max_workers = 1});
  EXPECT_EQ(plan.mesh.pp_size, 4);
  EXPECT_THAT(plan.partition, SizeIs(8));
  EXPECT_EQ(plan.schedule.name, "file:my.csv");
}

TEST(MakePlan, NamesWhatIsWrongWithTheUsersSchedule) {
  config::JobSpec job = SmallGpt2Job();
  job.parallelism.schedule = "file:my.csv";
  job.parallelism.schedule_csv = Csv("1f1b", 4, 4);
  EXPECT_EQ(ErrorOf(job),
            "parallelism.schedule is file:my.csv: has 4 microbatches; batch.global / "
            "(batch.microbatch x parallelism.data) "
            "makes 8; make them equal");
  job.parallelism.pipeline = 2;
  EXPECT_THAT(ErrorOf(job), HasSubstr("has 4 ranks; parallelism.pipeline is 2"));
  job.parallelism = {.chunks = 2, .schedule = "file:my.csv", .schedule_csv = Csv("1f1b", 4, 8)};
  EXPECT_THAT(ErrorOf(job), HasSubstr("has 4 stages on 4 ranks; parallelism.chunks is 2"));
  job.parallelism = {.schedule = "file:my.csv", .schedule_csv = "0F0,0F1,0B0\n"};
  EXPECT_THAT(ErrorOf(job), HasSubstr("parallelism.schedule is file:my.csv: "));
  EXPECT_EQ(ErrorOf(job).find("my.csv"), ErrorOf(job).rfind("my.csv"));
  job.parallelism.schedule_csv = "0F0,zero\n";
  EXPECT_THAT(ErrorOf(job), HasSubstr("my.csv:1:2"));
}

TEST(MakePlan, NamesTheFieldsOfTheJob) {
  config::JobSpec job = SmallGpt2Job();
  job.parallelism = {.pipeline = 11};
  EXPECT_THAT(ErrorOf(job), HasSubstr("parallelism.pipeline is 11: makes 11 stages"));
  job.parallelism = {.pipeline = 2, .schedule = "1f2b"};
  EXPECT_THAT(ErrorOf(job),
              HasSubstr("parallelism.schedule is 1f2b: must be one of auto, naive, gpipe, 1f1b, "));
  job.parallelism = {.pipeline = 2, .chunks = 2, .schedule = "1f1b"};
  EXPECT_THAT(ErrorOf(job), HasSubstr("parallelism.chunks is 2: 1f1b has one chunk per rank"));
  job.parallelism = {.pipeline = 4, .schedule = "interleaved-1f1b"};
  job.global_batch = 6;
  EXPECT_EQ(ErrorOf(job),
            "batch.global is 6: makes 3 microbatches a step; interleaved-1f1b needs at least as "
            "many as ranks (4); use more or "
            "smaller microbatches, fewer ranks, or schedule 1f1b");
  job.parallelism = {.data = 2};
  EXPECT_THAT(
      ErrorOf(job),
      HasSubstr("batch.global is 6: must be divisible by batch.microbatch x parallelism.data = 4"));
}

TEST(MakePlan, BoundsItsOwnSize) {
  config::JobSpec job = EmulatedJob(64, 1 << 16);
  job.parallelism.pipeline = 64;
  EXPECT_THAT(ErrorOf(job), HasSubstr("batch.microbatch is 1: makes 65536 microbatches a step; "
                                      "with 64 layers at most 4096 are possible"));
}

std::int64_t MostBytes(const Plan& plan) {
  std::int64_t most = 0;
  for (const MemoryBytes& rank : plan.memory) most = std::max(most, rank.total());
  return most;
}

TEST(MakePlan, RecomputesWhatItMustToFitTheWorkers) {
  using enum model::Recompute;
  config::JobSpec job = SmallGpt2Job();
  job.parallelism = {.pipeline = 2, .schedule = "1f1b"};
  const auto asking_for = [&](model::Recompute mode) {
    config::JobSpec asking = job;
    asking.parallelism.recompute = {mode};
    return *MakePlan(asking, {.max_workers = 2});
  };
  EXPECT_EQ(MostBytes(*MakePlan(job, {.max_workers = 2})), MostBytes(asking_for(kNone)));
  for (const model::Recompute mode : {kSelective, kFull}) {
    const std::int64_t room = MostBytes(asking_for(mode));
    const Plan found = *MakePlan(job, {.max_workers = 2, .worker_memory_bytes = room});
    EXPECT_LE(MostBytes(found), room);
    const auto most = std::max(found.partition[0].recompute, found.partition[1].recompute);
    EXPECT_EQ(most, mode);
    EXPECT_GT(found.predicted_step_seconds, 0);
  }
  const std::int64_t least = MostBytes(asking_for(kFull)) - 1;
  const std::string too_large = std::string(
      MakePlan(job, {.max_workers = 2, .worker_memory_bytes = least}).status().message());
  EXPECT_THAT(
      too_large,
      HasSubstr("parallelism.pipeline is 2: needs more memory than a worker has for a rank"));
  EXPECT_THAT(too_large, HasSubstr("process 44 MiB, "));
  EXPECT_THAT(too_large, EndsWith("use more stages or smaller microbatches"));
  job.parallelism.recompute = {kNone};
  EXPECT_THAT(
      std::string(MakePlan(job, {.max_workers = 2, .worker_memory_bytes = 1}).status().message()),
      EndsWith(", or parallelism.recompute: full"));
}

TEST(MakePlan, CountsTheForwardThatFullRecomputeAdds) {
  config::JobSpec job = SmallGpt2Job();
  job.parallelism = {.pipeline = 1, .schedule = "1f1b"};
  const double kept = MakePlan(job, kFourWithFreeLinks)->predicted_step_seconds;
  job.parallelism.recompute = {model::Recompute::kSelective};
  EXPECT_EQ(MakePlan(job, kFourWithFreeLinks)->predicted_step_seconds, kept);
  job.parallelism.recompute = {model::Recompute::kFull};
  const double recomputed = MakePlan(job, kFourWithFreeLinks)->predicted_step_seconds;
  // F is a third of F, I and W. Two thirds of a block's products and its attention are computed
  // again.
  EXPECT_GT(recomputed, 1.18 * kept);
  EXPECT_LT(recomputed, 1.3 * kept);
}

TEST(MakePlan, TakesARecomputeModeForEachStage) {
  using enum model::Recompute;
  config::JobSpec job = SmallGpt2Job();
  job.parallelism = {.pipeline = 2, .schedule = "1f1b", .recompute = {kFull, kNone}};
  const Plan plan = *MakePlan(job, {.max_workers = 2});
  EXPECT_EQ(plan.partition[0].recompute, kFull);
  EXPECT_EQ(plan.partition[1].recompute, kNone);
  job.parallelism.recompute = {kFull, kNone, kSelective};
  EXPECT_THAT(ErrorOf(job), HasSubstr("parallelism.recompute is [full, none, selective]: must be "
                                      "one mode, or one for each of the 2 stages"));
}

TEST(MakePlan, PrintsForPeople) {
  config::JobSpec job = EmulatedJob(4, 8);
  job.parallelism = {.pipeline = 2, .schedule = "gpipe"};
  EXPECT_EQ(ToString(*MakePlan(job, kFourWithFreeLinks)),
            "pipeline 2 x data 1, schedule gpipe, 8 microbatches\n"
            "stage 0 on pp rank 0: layers 0 to 1 of 4\n"
            "stage 1 on pp rank 1: layers 2 to 3 of 4\n"
            "predicted step 0.27 s, bubble 11.1 %\n"
            "pp rank 0 needs 44 MiB: process 44 MiB, messages 10 B\n"
            "pp rank 1 needs 44 MiB: process 44 MiB, messages 10 B\n");
}

}  // namespace
}  // namespace takt::plan
