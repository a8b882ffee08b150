// SPDX-License-Identifier: Apache-2.0
#include "common/config/job_spec.h"

#include <fstream>

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
    const Adamw adamw{.learning_rate = constants["lr_max"]};
    const LrSchedule schedule{.warmup_steps = constants["warmup_steps"],
                              .decay = LrDecay::kCosine,
                              .decay_steps = constants["steps"],
                              .min_learning_rate = constants["lr_min"]};
    ASSERT_EQ(golden["steps"].size(), 10u);
    for (const auto& step : golden["steps"]) {
      EXPECT_DOUBLE_EQ(LearningRate(adamw, schedule, step["step"]), step["lr"])
          << name << " " << step["step"];
    }
  }
}

TEST(LearningRate, StaysAtItsMinimumAfterTheDecay) {
  const LrSchedule schedule{.decay = LrDecay::kCosine, .decay_steps = 5, .min_learning_rate = 0.25};
  EXPECT_EQ(LearningRate({.learning_rate = 1}, schedule, 6), 0.25);
  EXPECT_EQ(LearningRate({.learning_rate = 1}, schedule, 1000000), 0.25);
}

TEST(LearningRate, WithoutDecayStaysAtItsPeak) {
  const LrSchedule schedule{.warmup_steps = 4};
  EXPECT_EQ(LearningRate({.learning_rate = 1}, schedule, 1), 0.25);
  EXPECT_EQ(LearningRate({.learning_rate = 1}, schedule, 5), 1);
  EXPECT_EQ(LearningRate({.learning_rate = 1}, {}, 1), 1);
}

TEST(LearningRate, DropsToItsMinimumWhenTheDecayEndsWithTheWarmup) {
  const LrSchedule schedule{
      .warmup_steps = 3, .decay = LrDecay::kCosine, .decay_steps = 3, .min_learning_rate = 0.5};
  EXPECT_EQ(LearningRate({.learning_rate = 1}, schedule, 3), 1);
  EXPECT_EQ(LearningRate({.learning_rate = 1}, schedule, 4), 0.5);
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
