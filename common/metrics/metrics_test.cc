// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>
#include <string>

#include "common/base/memory_kind.h"
#include "common/explain/explain.h"
#include "common/metrics/catalog.h"
#include "common/metrics/document.h"
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

const Label& Find(std::string_view name) {
  const auto label = std::ranges::find(AllLabels(), name, &Label::name);
  EXPECT_NE(label, AllLabels().end()) << name;
  return *label;
}

TEST(Catalog, EveryLabelIsDeclaredAndUsed) {
  std::set<std::string_view> used;
  for (const Metric* metric : AllMetrics()) {
    for (int i = 0; i < metric->num_labels(); ++i) used.insert(metric->label_names[i]);
  }
  for (const std::string_view name : used) Find(name);
  for (const Label& label : AllLabels()) EXPECT_TRUE(used.contains(label.name)) << label.name;
}

TEST(Catalog, LabelsHaveTheValuesThatTheCodeKnows) {
  for (int part = 0; part < explain::kNumParts; ++part) {
    const std::string name(explain::Name(static_cast<explain::Part>(part)));
    EXPECT_THAT(std::string(Find("component").values), HasSubstr(name));
  }
  EXPECT_EQ(Find("component").extent.count, explain::kNumParts);
  for (int cause = 1; cause <= trace::kNumCauses; ++cause) {
    const std::string name(trace::Name(static_cast<trace::Cause>(cause)));
    EXPECT_THAT(std::string(Find("cause").values), HasSubstr(name));
  }
  EXPECT_EQ(Find("cause").extent.count, trace::kNumCauses);
  EXPECT_EQ(Find("kind").extent.count, static_cast<int>(program::Op::kSpeculate));
  EXPECT_LE(kNumMemoryKinds, Find("kind").extent.count);
  for (std::size_t kind = 0; kind < kNumMemoryKinds; ++kind) {
    EXPECT_THAT(std::string(Find("kind").values),
                HasSubstr(std::string(Name(static_cast<MemoryKind>(kind)))));
  }
}

TEST(Catalog, BoundsTheSeriesOfAJob) {
  const JobShape shape{.stages = 8, .pp_ranks = 4, .dp_ranks = 2};
  EXPECT_EQ(MostSeriesPerJob(kLoss, shape), 1);
  EXPECT_EQ(MostSeriesPerJob(kStepComponent, shape), 7);
  EXPECT_EQ(MostSeriesPerJob(kRankIdle, shape), 4 * 7);
  EXPECT_EQ(SeriesPerJobFormula(kRankIdle), "P 7");
  // A stage is on one pp rank, and instructions without a stage are on each. There are two replicas
  // of all that.
  EXPECT_EQ(MostSeriesPerJob(kOpDuration, shape), 24 * (8 + 4) * 29 * 2);
  EXPECT_EQ(SeriesPerJobFormula(kOpDuration), "24 (S+P) 29 D");
  EXPECT_EQ(MostSeriesPerJob(kRankInfo, shape), 4 * 2);
  EXPECT_EQ(MostSeriesPerJob(kExpertLoad, shape), 0);
  EXPECT_EQ(MostSeriesPerJob(kExpertLoad, {.dp_ranks = 2, .expert_blocks = 6}), 6 * 2);
  EXPECT_EQ(SeriesPerJobFormula(kExpertLoad), "E D");
}

TEST(Document, IsTheOneInDocs) {
  std::ifstream file(TAKT_SOURCE_DIR "/docs/metrics.md");
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_EQ(text.str(), Document())
      << "ninja metrics_document, then: metrics_document > docs/metrics.md";
}

TEST(Registry, SameLabelsGiveTheSameSeries) {
  Registry registry;
  registry.Counter(kTokens, {"a"}).Increment(2);
  registry.Counter(kTokens, {"a"}).Increment(3);
  registry.Counter(kTokens, {"b"}).Increment(7);
  EXPECT_THAT(registry.Text(), HasSubstr("takt_tokens_total{job=\"a\"} 5"));
  EXPECT_THAT(registry.Text(), HasSubstr("takt_tokens_total{job=\"b\"} 7"));
}

TEST(Registry, DropRemovesTheSeriesWithAllOfTheLabelsAndNoOthers) {
  Registry registry;
  registry.Gauge(kLoss, {"a"}).Set(1.5);
  registry.Gauge(kLoss, {"b"}).Set(2.5);
  registry.Gauge(kWorkers, {"a"}).Set(4);  // another label's value equals the job's
  registry.Gauge(kBubbleFraction, {"b", "0"}).Set(0.125);
  registry.Gauge(kBubbleFraction, {"b", "1"}).Set(0.25);
  registry.Drop({{"job", "a"}});
  registry.Drop({{"job", "b"}, {"pp_rank", "1"}});
  EXPECT_THAT(registry.Text(), HasSubstr("pp_rank=\"0\"} 0.125"));
  EXPECT_THAT(registry.Text(), Not(HasSubstr("pp_rank=\"1\"")));
  EXPECT_THAT(registry.Text(), Not(HasSubstr("takt_loss{job=\"a\"}")));
  EXPECT_THAT(registry.Text(), HasSubstr("takt_loss{job=\"b\"} 2.5"));
  EXPECT_THAT(registry.Text(), HasSubstr("takt_workers{state=\"a\"} 4"));
  registry.Gauge(kLoss, {"a"}).Set(0.5);
  EXPECT_THAT(registry.Text(), HasSubstr("takt_loss{job=\"a\"} 0.5"));
}

TEST(Registry, RemoveRemovesOneSeries) {
  Registry registry;
  registry.Gauge(kLoss, {"a"}).Set(1.5);
  registry.Gauge(kLoss, {"b"}).Set(2.5);
  registry.Remove(kLoss, {"a"});
  registry.Remove(kLoss, {"c"});
  EXPECT_THAT(registry.Text(), Not(HasSubstr("takt_loss{job=\"a\"}")));
  EXPECT_THAT(registry.Text(), HasSubstr("takt_loss{job=\"b\"} 2.5"));
  registry.Gauge(kLoss, {"a"}).Set(0.5);
  EXPECT_THAT(registry.Text(), HasSubstr("takt_loss{job=\"a\"} 0.5"));
}

TEST(Catalog, DurationsOfInstructionsAreServedOnDemandInLargeJobs) {
  EXPECT_FALSE(ServedOnDemand(kOpDuration, kMostRanksInDetail));
  EXPECT_TRUE(ServedOnDemand(kOpDuration, kMostRanksInDetail + 1));
  EXPECT_FALSE(ServedOnDemand(kP2pWait, kMostRanksInDetail + 1));
}

TEST(Registry, ServesSomeMetricsOnDemand) {
  Registry registry;
  registry.Gauge(kLoss, {"a"}).Set(1.5);
  registry.Histogram(kOpDuration, {"a", "0", "F"});
  registry.ServeOnDemand(kOpDuration, true);
  EXPECT_THAT(registry.Text(), HasSubstr("takt_loss{job=\"a\"} 1.5"));
  EXPECT_THAT(registry.Text(), Not(HasSubstr("takt_op_duration_seconds")));
  EXPECT_THAT(registry.Text(Registry::Detail::kAll), HasSubstr("takt_op_duration_seconds_bucket"));
  registry.ServeOnDemand(kOpDuration, false);
  EXPECT_THAT(registry.Text(), HasSubstr("takt_op_duration_seconds_bucket"));
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
