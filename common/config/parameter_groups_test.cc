// SPDX-License-Identifier: Apache-2.0
#include "common/config/parameter_groups.h"

#include <string>

#include "gtest/gtest.h"

namespace takt::config {
namespace {

TEST(ParameterGroups, AStarStandsForAnyCharacters) {
  for (const char* pattern : {"h.1.bias", "*", "h.*", "*.bias", "h.*.bias", "*1*", "**",
                              "h.1.bias*", "*h.1.bias", "h*1*b*s", "*i*s"})
    EXPECT_TRUE(MatchesPattern(pattern, "h.1.bias")) << pattern;
  for (const char* pattern : {"", "h.1", "bias", "h.1.bia", "h.1.bias.", "*.bia", "h.?.bias", "*2*",
                              "h*1*1*bias", "*h.1.bias*x"})
    EXPECT_FALSE(MatchesPattern(pattern, "h.1.bias")) << pattern;
  EXPECT_TRUE(MatchesPattern("", ""));
  EXPECT_TRUE(MatchesPattern("*", ""));
}

// A matcher that tries all places of all stars would not end.
TEST(ParameterGroups, ManyStarsTakeNoLonger) {
  std::string pattern;
  for (int i = 0; i < 50; ++i) pattern += "*a";
  EXPECT_FALSE(MatchesPattern(pattern + "b", std::string(200, 'a')));
}

TEST(ParameterGroups, TheFirstMatchDecides) {
  JobSpec job;
  job.adamw.weight_decay = 0.1;
  job.groups = {{.parameters = "*.ln_1.*", .weight_decay = 0.5},
                {.parameters = "h.1.*", .learning_rate_scale = 2},
                {.parameters = "*.bias", .learning_rate_scale = 3, .weight_decay = 0.25}};
  const auto settings = [&](const char* name, int dimensions) {
    return SettingsOf(
        job, {.name = name,
              .shape = std::vector<std::int64_t>(static_cast<std::size_t>(dimensions), 4)});
  };
  EXPECT_EQ(settings("h.1.ln_1.bias", 1).learning_rate_scale, 1);
  EXPECT_EQ(settings("h.1.ln_1.bias", 1).weight_decay, 0.5);
  EXPECT_EQ(settings("h.1.bias", 1).learning_rate_scale, 2);
  EXPECT_EQ(settings("h.1.bias", 1).weight_decay, 0);
  EXPECT_EQ(settings("h.1.weight", 2).weight_decay, 0.1);
  EXPECT_EQ(settings("h.2.bias", 1).learning_rate_scale, 3);
  EXPECT_EQ(settings("h.2.bias", 1).weight_decay, 0.25);
  EXPECT_EQ(settings("h.2.weight", 2).learning_rate_scale, 1);
  EXPECT_EQ(settings("h.2.weight", 2).weight_decay, 0.1);
}

}  // namespace
}  // namespace takt::config
