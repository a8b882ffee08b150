// SPDX-License-Identifier: Apache-2.0
#include "common/plan/stage_costs.h"

#include <cstdint>
#include <memory>

#include "common/base/bucket_bytes.h"
#include "common/config/testing/jobs.h"
#include "common/plan/plan.h"
#include "common/profile/layer_shape.h"
#include "common/profile/profile.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::plan {
namespace {

using model::LayerKind;
using ::testing::DoubleEq;
using ::testing::DoubleNear;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// The job's table of tokens and its last norm have so many parameters.
constexpr int kTable = 100 * 64, kNorm = 2 * 64;

// A job of two stages on a host with four cores and four workers.
class StageCostsTest : public ::testing::Test {
 protected:
  StageCostsTest() {
    job_.model.layers = 4;
    job_.model.vocab = 100;
    job_.global_batch = 8;
    job_.microbatch = 1;
    job_.parallelism.pipeline = 2;
    job_.parallelism.schedule = "1f1b";
  }

  // Measures the layers of the job on as many ranks as it has.
  void AddLayers(double forward_seconds, double head_seconds) {
    const model::Model model = model::BuildModel(job_.model, job_.microbatch).value();
    for (const model::Layer& layer : model.layers) {
      const double seconds = layer.kind == LayerKind::kGpt2Head ? head_seconds : forward_seconds;
      profile_.AddLayer(
          {profile::ShapeOf(model, layer, model::Recompute::kNone), Here()},
          {.work = profile::WorkOf(layer, model::Recompute::kNone),
           .seconds = {.forward = seconds, .input_grad = 2 * seconds, .weight_grad = 4 * seconds}});
    }
  }

  profile::Conditions Here() const {
    const int ranks = *job_.parallelism.pipeline * job_.parallelism.data.value_or(1);
    return host_.ConditionsOf(ranks, job_.parallelism.threads, config::DeviceKind::kCpu);
  }

  PlanOptions Options() const {
    PlanOptions options{.max_workers = 4, .host = host_};
    options.profile = std::make_shared<const profile::Profile>(profile_);
    return options;
  }
  Plan Planned() const { return MakePlan(job_, Options()).value(); }

  // Returns what a message between the stages takes.
  double MessageSeconds(const PlanOptions& options) const {
    const Plan plan = MakePlan(job_, options).value();
    const auto bytes = static_cast<double>(plan.model.layers.front().cost.output_bytes);
    return plan.costs.link.latency + bytes * plan.costs.link.seconds_per_byte;
  }
  void AddMessage(bool same_host, double seconds) {
    constexpr std::int64_t kBytes = 32 * 64 * 4;  // what the stages pass on
    profile_.AddMessage(profile::KeyOfMessage(same_host, kBytes),
                        {.bytes = kBytes, .seconds = seconds});
  }

  config::JobSpec job_ = config::SmallGpt2Job();
  Host host_{.machine = "a processor", .threads = 1, .workers = 4};
  profile::Profile profile_;
};

TEST_F(StageCostsTest, LayersTakeWhatWasMeasured) {
  AddLayers(0.001, 0.001);
  profile_.AddRank(Here(), {.dispatch_seconds = 1e-5});
  job_.parallelism.stage_layers = {2, 2};
  const Plan plan = Planned();
  for (const StageId stage : {StageId(0), StageId(1)}) {
    EXPECT_THAT(plan.costs.F(stage), DoubleNear(3 * 0.001 + 1e-5, 1e-12));
    EXPECT_THAT(plan.costs.I(stage), DoubleNear(3 * 0.002 + 1e-5, 1e-12));
    EXPECT_THAT(plan.costs.W(stage), DoubleNear(3 * 0.004 + 1e-5, 1e-12));
    EXPECT_THAT(plan.costs.B(stage), DoubleNear(3 * 0.006 + 1e-5, 1e-12));
  }
}

TEST_F(StageCostsTest, PairsThatRunSideBySideTakeWhatWasMeasured) {
  AddLayers(0.001, 0.001);
  job_.parallelism.stage_layers = {2, 2};
  profile_.AddPair(Here(), 0.9);
  EXPECT_EQ(Planned().costs.pair_ratio, 1);  // F and B follow one another
  job_.parallelism.tensor = 2;
  const cost::Costs costs = Planned().costs;
  const StageId first(0), last(1);
  EXPECT_THAT(costs.O(first, last), DoubleNear(0.9 * (costs.F(first) + costs.B(last)), 1e-12));
}

// A bucket is so large that its latency is about a twentieth of its time.
TEST_F(StageCostsTest, BucketsFollowTheMeasuredMessages) {
  job_.parallelism.data = 2;
  const auto measure = [&](double latency, double seconds_per_byte) {
    for (const std::int64_t bytes : {1 << 12, 1 << 20}) {
      profile_.AddMessage(
          profile::KeyOfMessage(true, bytes),
          {.bytes = bytes, .seconds = latency + seconds_per_byte * static_cast<double>(bytes)});
    }
    return Planned().bucket_bytes;
  };
  EXPECT_EQ(Planned().bucket_bytes, 0);
  EXPECT_EQ(measure(20e-6, 1e-9), 512 << 10);
  EXPECT_EQ(measure(1e-3, 1e-9), kMostBucketBytes);
  EXPECT_EQ(measure(1e-6, 1e-9), kLeastBucketBytes);
  PlanOptions old = Options();
  old.oldest_protocol = kAllWaysProtocolVersion - 1;
  EXPECT_EQ(MakePlan(job_, old)->bucket_bytes, 0);
  job_.parallelism.data = 1;
  EXPECT_EQ(Planned().bucket_bytes, 0);
}

TEST_F(StageCostsTest, ASlowHeadIsAStageAlone) {
  AddLayers(0.001, 0.010);
  const Plan plan = Planned();
  EXPECT_EQ(plan.partition[0].last_layer, LayerId(5));
}

TEST_F(StageCostsTest, AStepIsPredictedAgainByWhatIsKnownNow) {
  AddLayers(0.001, 0.001);
  const Plan plan = Planned();
  EXPECT_DOUBLE_EQ(PredictStep(job_, Options(), plan).value(), plan.predicted_step_seconds);
  AddLayers(0.001, 0.010);
  const double now = PredictStep(job_, Options(), plan).value();
  EXPECT_GT(now, plan.predicted_step_seconds);
  EXPECT_LT(Planned().predicted_step_seconds, now) << "the head is a stage alone";
  job_.parallelism.stage_layers = {2, 2};  // as it was planned
  EXPECT_DOUBLE_EQ(Planned().predicted_step_seconds, now);
}

TEST_F(StageCostsTest, WithoutAFlushTheCutDependsOnNoMeasurement) {
  job_.adamw.clip_norm = 0;
  job_.parallelism.schedule = "pipedream-2bw";
  const LayerId usual = Planned().partition[0].last_layer;
  AddLayers(0.001, 0.010);
  EXPECT_EQ(Planned().partition[0].last_layer, usual);
  job_.parallelism.schedule = "1f1b";
  EXPECT_NE(Planned().partition[0].last_layer, usual);
}

TEST_F(StageCostsTest, OriginsNameEachShapeOnce) {
  AddLayers(0.001, 0.001);
  const Origins measured = MakeForecasts(job_, Options(), 1)->origins;
  EXPECT_THAT(measured.measured, SizeIs(3));  // embedding, block, head
  EXPECT_THAT(measured.interpolated, IsEmpty());
  EXPECT_THAT(measured.guessed, IsEmpty());
  job_.microbatch = 2;
  EXPECT_THAT(MakeForecasts(job_, Options(), 1)->origins.interpolated, SizeIs(3));
  host_.machine = "another processor";
  EXPECT_THAT(MakeForecasts(job_, Options(), 1)->origins.guessed, SizeIs(3));
}

TEST_F(StageCostsTest, BothEndsUpdateATiedTable) {
  profile_.AddRank(Here(), {.update_seconds = 1e-9});
  job_.parallelism.stage_layers = {4, 0};
  EXPECT_THAT(Planned().costs.Optimizer(PpRank(1)), DoubleEq(1e-9 * (kTable + kNorm)));
  job_.parallelism.pipeline = 1;
  job_.parallelism.stage_layers.clear();
  const Plan plan = Planned();
  EXPECT_THAT(plan.costs.Optimizer(PpRank(0)),
              DoubleEq(1e-9 * static_cast<double>(plan.model.num_parameters())));
}

TEST_F(StageCostsTest, CopiesSumTheGradientsOfEachUse) {
  job_.parallelism.data = 2;
  job_.parallelism.stage_layers = {4, 0};
  profile_.AddSum({.same_host = true, .num_ranks = 2}, 1e-9);
  const Plan plan = Planned();
  EXPECT_THAT(plan.costs.Reduction(StageId(1)), DoubleEq(1e-9 * 4 * (kTable + kNorm)));
  EXPECT_THAT(plan.costs.tied_reduction, DoubleEq(1e-9 * 4 * kTable));
}

// Each of three ranks sends two thirds of the bytes twice, and gets as many.
TEST_F(StageCostsTest, SumsThatWereNotMeasuredTakeWhatTheirMessagesDo) {
  job_.global_batch = 12;
  job_.parallelism.data = 3;
  job_.parallelism.stage_layers = {4, 0};
  PlanOptions options = Options();
  options.link_seconds_per_byte = 3e-9;
  const Plan plan = MakePlan(job_, options).value();
  EXPECT_THAT(plan.costs.Reduction(StageId(1)), DoubleNear(4e-9 * 4 * (kTable + kNorm), 1e-12));
  EXPECT_THAT(plan.costs.tied_reduction, DoubleNear(3e-9 * 4 * kTable, 1e-12));
}

TEST_F(StageCostsTest, MessagesTakeWhatWasMeasuredWhereTheRanksAre) {
  EXPECT_GT(MessageSeconds(Options()), 20e-6);
  AddMessage(/*same_host=*/true, 50e-6);
  AddMessage(/*same_host=*/false, 5e-6);
  EXPECT_THAT(MessageSeconds(Options()), DoubleEq(50e-6));
  host_.workers = 1;
  EXPECT_THAT(MessageSeconds(Options()), DoubleEq(5e-6));
  PlanOptions options = Options();
  options.link_latency_seconds = 1;
  options.use_measured_links = false;
  EXPECT_GT(MessageSeconds(options), 1);
}

TEST_F(StageCostsTest, ACheckpointPausesForItsSnapshot) {
  const auto pause = [&] {
    const Forecasts forecasts = MakeForecasts(job_, Options(), 1).value();
    return forecasts.candidates[0].checkpoint_pause_seconds;
  };
  EXPECT_EQ(pause(), 0);
  job_.checkpoint = config::Checkpoint{.directory = "saved"};
  const double usual = pause();
  EXPECT_GT(usual, 0);
  profile_.AddSnapshot(Here(), 1e-9);  // ten times the usual
  EXPECT_NEAR(pause() / usual, 10, 1e-9);
}

}  // namespace
}  // namespace takt::plan
