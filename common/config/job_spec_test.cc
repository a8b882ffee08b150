// SPDX-License-Identifier: Apache-2.0
#include "common/config/job_spec.h"

#include <cstdint>
#include <fstream>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace takt::config {
namespace {

TEST(LearningRate, FollowsTheGoldenTrajectories) {
  for (const char* name : {"gpt2-tiny", "gpt2-ignore-index"}) {
    std::ifstream in(absl::StrCat(TAKT_SOURCE_DIR, "/tests/golden/models/", name, "/train.json"));
    const nlohmann::json golden = nlohmann::json::parse(in);
    const auto& constants = golden["lr_schedule"];
    const double peak = constants["lr_max"];
    const LrSchedule schedule{.warmup_steps = constants["warmup_steps"],
                              .decay = LrDecay::kCosine,
                              .decay_steps = constants["steps"],
                              .min_learning_rate = constants["lr_min"]};
    ASSERT_EQ(golden["steps"].size(), 10u);
    for (const auto& step : golden["steps"]) {
      EXPECT_DOUBLE_EQ(LearningRate(peak, schedule, step["step"]), step["lr"])
          << name << " " << step["step"];
    }
  }
}

// tests/golden/optimizers/make.py computes them with PyTorch's schedulers.
TEST(LearningRate, IsThatOfPyTorchsSchedulers) {
  const std::map<std::string, LrDecay> decays = {{"cosine", LrDecay::kCosine},
                                                 {"linear", LrDecay::kLinear},
                                                 {"wsd", LrDecay::kWsd},
                                                 {"inverse_sqrt", LrDecay::kInverseSqrt}};
  std::ifstream in(TAKT_SOURCE_DIR "/tests/golden/optimizers/learning_rates.json");
  const nlohmann::json golden = nlohmann::json::parse(in);
  ASSERT_EQ(golden["cases"].size(), 6u);
  for (const auto& each : golden["cases"]) {
    const auto& constants = each["lr_schedule"];
    const LrSchedule schedule{.warmup_steps = constants["warmup_steps"],
                              .decay = decays.at(constants["decay"].get<std::string>()),
                              .stable_steps = constants.value("stable_steps", 0),
                              .decay_steps = constants.value("decay_steps", 0),
                              .min_learning_rate = constants.value("min_learning_rate", 0.0)};
    const double peak = each["learning_rate"];
    std::int64_t step = 0;
    for (const double rate : each["rates"]) {
      ++step;
      EXPECT_NEAR(LearningRate(peak, schedule, step), rate, 1e-13 * peak) << constants << step;
    }
  }
}

TEST(LearningRate, OfWsdIsExactlyItsPeakAndThenItsMinimum) {
  const LrSchedule schedule{.warmup_steps = 2,
                            .decay = LrDecay::kWsd,
                            .stable_steps = 3,
                            .decay_steps = 4,
                            .min_learning_rate = 0.1};
  EXPECT_EQ(LearningRate(0.3, schedule, 2), 0.3);
  EXPECT_EQ(LearningRate(0.3, schedule, 5), 0.3);
  EXPECT_LT(LearningRate(0.3, schedule, 6), 0.3);
  EXPECT_GT(LearningRate(0.3, schedule, 8), 0.1);
  EXPECT_EQ(LearningRate(0.3, schedule, 9), 0.1);
  EXPECT_EQ(LearningRate(0.3, schedule, 1000), 0.1);
}

TEST(LearningRate, StaysAtItsMinimumAfterTheDecay) {
  const LrSchedule schedule{.decay = LrDecay::kCosine, .decay_steps = 5, .min_learning_rate = 0.25};
  EXPECT_EQ(LearningRate(1, schedule, 6), 0.25);
  EXPECT_EQ(LearningRate(1, schedule, 1000000), 0.25);
}

TEST(LearningRate, WithoutDecayStaysAtItsPeak) {
  const LrSchedule schedule{.warmup_steps = 4};
  EXPECT_EQ(LearningRate(1, schedule, 1), 0.25);
  EXPECT_EQ(LearningRate(1, schedule, 5), 1);
  EXPECT_EQ(LearningRate(1, {}, 1), 1);
}

TEST(LearningRate, DropsToItsMinimumWhenTheDecayEndsWithTheWarmup) {
  const LrSchedule schedule{
      .warmup_steps = 3, .decay = LrDecay::kCosine, .decay_steps = 3, .min_learning_rate = 0.5};
  EXPECT_EQ(LearningRate(1, schedule, 3), 1);
  EXPECT_EQ(LearningRate(1, schedule, 4), 0.5);
}

TEST(PrecisionsOf, ActivationsAreInBf16OnGpusAlone) {
  JobSpec job;
  using enum Precision;
  for (const DeviceKind device : {DeviceKind::kAuto, DeviceKind::kCpu, DeviceKind::kCuda}) {
    job.precision = kF32;
    EXPECT_EQ(PrecisionsOf(job, device).products, kF32);
    EXPECT_EQ(PrecisionsOf(job, device).activations, kF32);
    job.precision = kBf16;
    EXPECT_EQ(PrecisionsOf(job, device).products, kBf16);
    EXPECT_EQ(PrecisionsOf(job, device).activations, device == DeviceKind::kCuda ? kBf16 : kF32);
  }
}

}  // namespace
}  // namespace takt::config
