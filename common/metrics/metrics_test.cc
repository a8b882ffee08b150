// SPDX-License-Identifier: Apache-2.0
#include <set>
#include <string>

#include "common/metrics/catalog.h"
#include "common/metrics/registry.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::metrics {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;

TEST(Catalog, NamesAreUniqueAndFollowTheRules) {
  std::set<std::string_view> names;
  for (const Metric* metric : AllMetrics()) {
    EXPECT_THAT(std::string(metric->name), MatchesRegex("takt_[a-z0-9_]*[a-z0-9]"));
    EXPECT_TRUE(names.insert(metric->name).second) << metric->name << " is there twice";
    EXPECT_FALSE(metric->help.empty()) << metric->name;
    EXPECT_EQ(metric->kind == Kind::kCounter, metric->name.ends_with("_total")) << metric->name;
    EXPECT_EQ(metric->kind == Kind::kHistogram, metric->name.ends_with("_duration_seconds"))
        << metric->name;
  }
}

TEST(Catalog, NoLabelGrowsWithTheLengthOfAJob) {
  for (const Metric* metric : AllMetrics()) {
    for (const std::string_view label : metric->label_names) {
      EXPECT_THAT((std::set<std::string_view>{"step", "microbatch", "generation"}),
                  Not(testing::Contains(label)))
          << metric->name;
    }
  }
}

TEST(Registry, SameLabelsGiveTheSameSeries) {
  Registry registry;
  registry.Counter(kTokens, {"a"}).Increment(2);
  registry.Counter(kTokens, {"a"}).Increment(3);
  registry.Counter(kTokens, {"b"}).Increment(7);
  EXPECT_THAT(registry.Text(), HasSubstr("takt_tokens_total{job=\"a\"} 5"));
  EXPECT_THAT(registry.Text(), HasSubstr("takt_tokens_total{job=\"b\"} 7"));
}

TEST(Registry, DropJobRemovesItsSeriesAndNoOthers) {
  Registry registry;
  registry.Gauge(kLoss, {"a"}).Set(1.5);
  registry.Gauge(kLoss, {"b"}).Set(2.5);
  registry.Gauge(kWorkers, {"a"}).Set(4);  // a state that is called as the job is
  registry.DropJob("a");
  EXPECT_THAT(registry.Text(), Not(HasSubstr("takt_loss{job=\"a\"}")));
  EXPECT_THAT(registry.Text(), HasSubstr("takt_loss{job=\"b\"} 2.5"));
  EXPECT_THAT(registry.Text(), HasSubstr("takt_workers{state=\"a\"} 4"));
  registry.Gauge(kLoss, {"a"}).Set(0.5);
  EXPECT_THAT(registry.Text(), HasSubstr("takt_loss{job=\"a\"} 0.5"));
}

TEST(Registry, SaysWhatIsRunning) {
  const Registry registry("takt-worker");
  EXPECT_THAT(registry.Text(), HasSubstr("takt_build_info{"));
  EXPECT_THAT(registry.Text(), HasSubstr("program=\"takt-worker\""));
}

TEST(RegistryDeathTest, WrongKindOrNumberOfLabelsIsABug) {
  Registry registry;
  EXPECT_DEATH(registry.Gauge(kTokens, {"a"}), "Kind|kind");
  EXPECT_DEATH(registry.Gauge(kLoss, {}), "num_labels");
}

}  // namespace
}  // namespace takt::metrics
