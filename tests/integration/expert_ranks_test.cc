// SPDX-License-Identifier: Apache-2.0
// Jobs whose replicas share the experts of blocks (`parallelism.expert`), through real daemons.
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/split_job.h"
#include "tests/testing/cluster.h"

namespace takt {
namespace {

using testing::Cluster;
using ::testing::IsEmpty;
namespace fs = std::filesystem;

constexpr char kMixtral[] =
    "{family: mixtral, layers: 4, hidden: 16, heads: 2, kv_heads: 1, inner: 24, context: 16, "
    "vocab: 256, experts: {count: 4, per_token: 2, auxiliary_loss: 0.01}}";

TEST(ExpertRanks, TrainAlikeBitForBitWhoeverHasTheExperts) {
  Cluster cluster(4);
  const std::vector<std::string> layouts = {
      "data: 4, pipeline: 1, expert: 1, schedule: naive",
      "data: 4, pipeline: 1, expert: 2, schedule: naive, transport: shm",
      "data: 4, pipeline: 1, expert: 4, schedule: naive, transport: gloo",
      "data: 2, pipeline: 2, expert: 2, schedule: dualpipe",
  };
  Curve first;
  for (std::size_t i = 0; i < layouts.size(); ++i) {
    const Curve curve = Train(cluster, {.name = absl::StrCat("experts-", i),
                                        .parallelism = layouts[i],
                                        .model = kMixtral,
                                        .steps = 4});
    ASSERT_EQ(curve.size(), 4U) << layouts[i];
    EXPECT_LT(curve.back().first, curve.front().first);
    if (i == 0) first = curve;
    EXPECT_EQ(curve, first) << layouts[i];
  }
  EXPECT_THAT(cluster.StopAll(), IsEmpty());
}

// Checkpoints have all experts.
TEST(ExpertRanks, GoOnWithOtherNumbersOfRanksThatShare) {
  Cluster cluster(4);
  const auto directory = [&](const std::string& name) {
    return absl::StrCat(cluster.directory(), "/", name);
  };
  // Returns the job that resumes from what the job `from` left.
  const auto job = [&](const std::string& name, const std::string& from, int steps,
                       const std::string& parallelism) {
    if (!from.empty()) {
      fs::copy(directory(from), directory(name),
               fs::copy_options::recursive | fs::copy_options::copy_symlinks);
    }
    return SplitJob{.name = name,
                    .parallelism = parallelism,
                    .model = kMixtral,
                    .directory = directory(name),
                    .steps = steps};
  };
  const std::string mesh = "data: 4, pipeline: 1, schedule: 1f1b, expert: ";
  const Curve straight = Train(cluster, job("straight", "", 6, mesh + "1"));
  ASSERT_EQ(straight.size(), 6U);
  Curve parts = Train(cluster, job("four", "", 2, mesh + "4"));
  const Curve one = Train(cluster, job("one", "four", 4, mesh + "1"));
  parts.insert(parts.end(), one.begin(), one.end());
  const Curve two = Train(cluster, job("two", "one", 6, mesh + "2"));
  parts.insert(parts.end(), two.begin(), two.end());
  EXPECT_EQ(parts, straight);
}

}  // namespace
}  // namespace takt
