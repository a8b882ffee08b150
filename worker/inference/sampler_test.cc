// SPDX-License-Identifier: Apache-2.0
#include "worker/inference/sampler.h"

#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::inference {
namespace {

using Floats = std::vector<float>;

std::vector<std::int32_t> Draw(const SamplingOptions& options, const Floats& logits, int count) {
  Sampler sampler(options);
  std::vector<std::int32_t> drawn;
  for (int i = 0; i < count; ++i) drawn.push_back(sampler.Next(logits).value());
  return drawn;
}

TEST(Sampler, WithoutTemperatureTakesTheLargestAndOfEqualOnesTheFirst) {
  EXPECT_THAT(Draw({}, {1, 3, 2, 3}, 2), testing::ElementsAre(1, 1));
  EXPECT_THAT(Draw({.top_p = 0.5, .seed = 9}, {-5, -7}, 1), testing::ElementsAre(0));
}

TEST(Sampler, DrawsByTheProbabilitiesOfTheModel) {
  constexpr int kDraws = 20000;
  const Floats logits = {std::log(1.0F), std::log(2.0F), std::log(5.0F)};
  for (const double temperature : {1.0, 0.5}) {
    std::map<std::int32_t, int> counts;
    for (const std::int32_t id : Draw({.temperature = temperature, .seed = 1}, logits, kDraws))
      ++counts[id];
    // A temperature of a half squares the shares.
    const double sum = temperature == 1 ? 8 : 1 + 4 + 25;
    const double largest = temperature == 1 ? 5 : 25;
    // Five standard deviations of a count.
    const double share = largest / sum;
    EXPECT_NEAR(counts[2], kDraws * share, 5 * std::sqrt(kDraws * share * (1 - share)));
    EXPECT_EQ(counts.size(), 3U);
  }
}

TEST(Sampler, TopPKeepsTheMostProbableThatTogetherReachIt) {
  const Floats logits = {std::log(1.0F), std::log(5.0F), std::log(2.0F), std::log(2.0F)};
  const auto kept = [&](double top_p) {
    const std::vector<std::int32_t> drawn =
        Draw({.temperature = 1, .top_p = top_p, .seed = 3}, logits, 500);
    return std::set<std::int32_t>(drawn.begin(), drawn.end());
  };
  EXPECT_THAT(kept(0.01), testing::ElementsAre(1));
  EXPECT_THAT(kept(0.45), testing::ElementsAre(1));
  EXPECT_THAT(kept(0.6), testing::ElementsAre(1, 2));  // of equal ones the first
  EXPECT_THAT(kept(0.85), testing::ElementsAre(1, 2, 3));
  EXPECT_THAT(kept(1), testing::ElementsAre(0, 1, 2, 3));
}

// More ids than are sorted at first take part.
TEST(Sampler, TopPOfAnEvenDistributionKeepsItsShare) {
  const Floats logits(1000, 0.5F);
  for (const std::int32_t id : Draw({.temperature = 1, .top_p = 0.5, .seed = 4}, logits, 2000))
    EXPECT_LT(id, 500);
}

TEST(Sampler, TheSeedDecidesTheDraws) {
  const Floats logits(100, 0);
  const SamplingOptions options{.temperature = 1, .seed = 5};
  EXPECT_EQ(Draw(options, logits, 20), Draw(options, logits, 20));
  EXPECT_NE(Draw(options, logits, 20), Draw({.temperature = 1, .seed = 6}, logits, 20));
}

TEST(Sampler, SurvivesLogitsOfAnySize) {
  EXPECT_THAT(Draw({.temperature = 1e-3}, {3e38F, -3e38F}, 2), testing::ElementsAre(0, 0));
  EXPECT_THAT(Draw({.temperature = 1e300}, {0, 0}, 1), testing::Each(testing::Lt(2)));
}

TEST(Sampler, RefusesWhatIsNoNumber) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    const absl::Status status = Sampler({}).Next(Floats{0, bad}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr("token 1"));
  }
}

}  // namespace
}  // namespace takt::inference
