// SPDX-License-Identifier: Apache-2.0
#include "cli/ui/timelines.h"

#include <atomic>

#include "cli/testing/fake_trace.h"
#include "gmock/gmock.h"
#include "nlohmann/json.hpp"

namespace takt::cli {
namespace {

using nlohmann::json;

class TimelinesTest : public testing::Test {
 protected:
  TimelinesTest() : synthetic_("1f1b", 2, 4, {.dp_size = 40, .num_steps = 2}) {
    synthetic_.Get();
    coordinator_.step_traces = [this](auto&, const v1::GetTraceRequest& request, auto& writer) {
      ++num_reads_;
      return WriteTrace(synthetic_.Get(), request, writer);
    };
    client_ = Client::Connect({.address = coordinator_.address()}).value();
  }

  trace::SyntheticTrace synthetic_;
  std::atomic<int> num_reads_ = 0;
  FakeCoordinator coordinator_;
  std::unique_ptr<Client> client_;
};

TEST_F(TimelinesTest, ReadsAStepOnceForAllViewers) {
  Timelines timelines(*client_);
  const auto newest = timelines.ReadNewest("j").value();
  EXPECT_EQ(newest->step(), 2);
  EXPECT_EQ(timelines.ReadNewest("j").value(), newest);  // the same step is the same object
  EXPECT_EQ(num_reads_, 2);
  const auto picture = timelines.Picture("j", 0, 0).value();
  EXPECT_EQ(timelines.Picture("j", 0, 0).value(), picture);
  EXPECT_EQ(num_reads_, 2);
  EXPECT_EQ(json::parse(*picture)["ranks"].size(), 64u);
  EXPECT_EQ(json::parse(*timelines.Picture("j", 0, 64).value())["ranks"].size(), 16u);
}

TEST_F(TimelinesTest, ReadsOlderStepsOnRequest) {
  Timelines timelines(*client_);
  EXPECT_EQ(json::parse(*timelines.Picture("j", 1, 0).value())["steps"][0][0], 1);
  EXPECT_EQ(json::parse(*timelines.Picture("j", 1, 64).value())["first_rank"], 64);
  EXPECT_EQ(num_reads_, 1);
}

TEST_F(TimelinesTest, RefusesRanksThatAreNotThere) {
  Timelines timelines(*client_);
  EXPECT_EQ(timelines.Picture("j", 0, 80).status().code(), absl::StatusCode::kOutOfRange);
}

}  // namespace
}  // namespace takt::cli
