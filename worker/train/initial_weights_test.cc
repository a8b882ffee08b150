// SPDX-License-Identifier: Apache-2.0
#include "worker/train/initial_weights.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::train {
namespace {

model::Parameter Normal(std::string name, std::int64_t size, double stddev = 0.02) {
  return {.name = std::move(name), .shape = {size}, .init = model::Init::kNormal, .stddev = stddev};
}

std::vector<float> Fill(const model::Parameter& parameter, std::uint64_t seed) {
  std::vector<float> values(static_cast<std::size_t>(parameter.elements()), -1.0F);
  FillInitialWeights(parameter, seed, values);
  return values;
}

TEST(InitialWeights, DependOnSeedAndNameAlone) {
  const std::vector<float> values = Fill(Normal("a", 100), 7);
  EXPECT_EQ(values, Fill(Normal("a", 100), 7));
  EXPECT_NE(values, Fill(Normal("a", 100), 8));
  EXPECT_NE(values, Fill(Normal("b", 100), 7));
}

TEST(InitialWeights, OfAPrefixAreAPrefix) {
  const std::vector<float> all = Fill(Normal("a", 101), 7);
  const std::vector<float> part = Fill(Normal("a", 50), 7);
  EXPECT_TRUE(std::equal(part.begin(), part.end(), all.begin()));
}

// Standard errors of the moments of n normal numbers: 1/sqrt(n), sqrt(2/n), sqrt(24/n) for mean,
// variance and kurtosis.
TEST(InitialWeights, AreNormal) {
  constexpr int kCount = 1'000'000;
  const std::vector<float> values = Fill(Normal("transformer.wte.weight", kCount, 0.02), 1234);
  double sum = 0;
  double squares = 0;
  double fourths = 0;
  double neighbours = 0;
  for (int i = 0; i < kCount; ++i) {
    const double x = values[i] / 0.02;
    sum += x;
    squares += x * x;
    fourths += x * x * x * x;
    if (i > 0) neighbours += x * values[i - 1] / 0.02;
  }
  const double standard_error = 1 / std::sqrt(kCount);
  EXPECT_NEAR(sum / kCount, 0, 5 * standard_error);
  EXPECT_NEAR(squares / kCount, 1, 5 * std::sqrt(2.0) * standard_error);
  EXPECT_NEAR(fourths / kCount, 3, 5 * std::sqrt(96.0) * standard_error);
  EXPECT_NEAR(neighbours / kCount, 0, 5 * standard_error);
  EXPECT_GT(*std::max_element(values.begin(), values.end()), 4 * 0.02);
}

TEST(InitialWeights, OfNormsAndBiasesAreConstants) {
  EXPECT_THAT(Fill({.name = "bias", .shape = {5}, .init = model::Init::kZeros}, 1),
              testing::Each(0.0F));
  EXPECT_THAT(Fill({.name = "weight", .shape = {5}, .init = model::Init::kOnes}, 1),
              testing::Each(1.0F));
}

// The numbers are part of what makes a job reproducible: they must not change from one build to the
// next.
TEST(InitialWeights, StayWhatTheyWere) {
  const std::vector<float> values = Fill(Normal("transformer.wte.weight", 3, 1.0), 1234);
  EXPECT_THAT(values, testing::ElementsAre(testing::FloatNear(-0.439264F, 1e-6F),
                                           testing::FloatNear(-0.0409146F, 1e-6F),
                                           testing::FloatNear(0.470697F, 1e-6F)));
}

}  // namespace
}  // namespace takt::train
