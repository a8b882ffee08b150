// SPDX-License-Identifier: Apache-2.0
#include "coordinator/job/memory_source.h"

#include "common/base/version.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::job {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A job of four ranks with a stage of 1,000,000 parameters each.
class MemorySourceTest : public ::testing::Test {
 protected:
  MemorySourceTest() {
    spec_.copy_every_steps = config::kAutoCopies;
    spec_.model.family = model::Family::kGpt2;
    plan_.mesh = {.pp_size = 4, .dp_size = 1};
    plan_.predicted_step_seconds = 1;
    for (int i = 0; i < 4; ++i) {
      plan_.model.layers.emplace_back();
      plan_.model.layers.back().parameters.push_back({.name = "w", .shape = {1000, 1000}});
      plan_.partition.push_back({.id = StageId(i),
                                 .pp_rank = PpRank(i),
                                 .first_layer = LayerId(i),
                                 .last_layer = LayerId(i + 1)});
    }
  }
  CopyPlan Plan() const {
    return PlanCopies({.spec = spec_,
                       .plan = plan_,
                       .device = device_,
                       .hosts = hosts_,
                       .oldest_protocol = protocol_,
                       .seconds_per_byte = seconds_per_byte_});
  }

  config::JobSpec spec_;
  plan::Plan plan_;
  std::vector<std::string> hosts_ = {"a", "a", "a", "a"};
  int protocol_ = kProtocolVersion;
  std::optional<double> seconds_per_byte_;
  config::DeviceKind device_ = config::DeviceKind::kCpu;
};

// 12 MB take 6 ms as assumed, the boundary 0.2 ms, and the sending 18 ms; a step of 1 s may
// lose 10.
TEST_F(MemorySourceTest, AutoCopiesAsOftenAsOnePercentOfAStepAllows) {
  EXPECT_EQ(Plan().copies.every_steps, 3);
  device_ = config::DeviceKind::kCuda;
  EXPECT_EQ(Plan().copies.every_steps, 1);
  plan_.predicted_step_seconds = 0.1;  // 6.2 ms of 1 ms
  EXPECT_EQ(Plan().copies.every_steps, 7);
  seconds_per_byte_ = 1e-10;  // 1.4 ms
  EXPECT_EQ(Plan().copies.every_steps, 2);
  device_ = config::DeviceKind::kCpu;
  EXPECT_EQ(Plan().copies.every_steps, 20);  // 19.4 ms
  spec_.copy_every_steps = 7;
  EXPECT_EQ(Plan().copies.every_steps, 7);
}

// A boundary costs such a pipeline most of its ramp, which is much more than the copy.
TEST_F(MemorySourceTest, AutoCopiesRarelyWhereStepsRunIntoOneAnother) {
  program::Instruction speculate;
  speculate.op = program::Op::kSpeculate;
  plan_.programs.emplace_back().body.push_back(speculate);
  EXPECT_EQ(Plan().copies.every_steps, 43);
}

TEST_F(MemorySourceTest, AJobThatDidNotAskKeepsNoneWhereTheyDoNotFit) {
  spec_.checkpoint = config::Checkpoint{.directory = "runs"};
  plan_.memory.resize(4);
  EXPECT_EQ(Plan().copies.every_steps, 0);
  EXPECT_THAT(Plan().why_none, HasSubstr("do not fit"));
  plan_.memory[1][MemoryKind::kCopies] = 48'000'000;
  EXPECT_EQ(Plan().copies.every_steps, 3);
}

TEST_F(MemorySourceTest, CopiesGoToAnotherHostWhereThereIsOne) {
  EXPECT_EQ(Plan().copies.shift, 1);
  hosts_ = {"a", "a", "b", "b"};
  EXPECT_EQ(Plan().copies.shift, 2);
  hosts_ = {"a", "b", "a", "b"};
  EXPECT_EQ(Plan().copies.shift, 1);
}

TEST_F(MemorySourceTest, CopiesGoToARankWithTheSamePartOfTheLayers) {
  plan_.mesh = {.pp_size = 2, .tp_size = 2};
  EXPECT_EQ(Plan().copies.shift, 2);
  hosts_ = {"a", "b", "a", "b"};
  EXPECT_EQ(Plan().copies.shift, 2);
  EXPECT_TRUE(Plan().may_restore);
  spec_.parallelism.tensor = 2;
  protocol_ = kAllCopiesProtocolVersion - 1;
  EXPECT_THAT(Plan().why_none, HasSubstr("too old"));
  EXPECT_FALSE(Plan().may_restore);
}

TEST_F(MemorySourceTest, ReplicasHoldEachOthersState) {
  plan_.mesh = {.pp_size = 4, .dp_size = 2};
  hosts_.resize(8, "b");
  EXPECT_EQ(Plan().copies.shift, 0);
  EXPECT_EQ(Plan().copies.every_steps, 1);
}

TEST_F(MemorySourceTest, AWorkerOfAnOlderVersionKeepsNone) {
  EXPECT_THAT(Plan().why_none, IsEmpty());
  protocol_ = kCopiesProtocolVersion - 1;
  EXPECT_THAT(Plan().why_none, HasSubstr("too old"));
  EXPECT_EQ(Plan().copies.every_steps, 0);
}

}  // namespace
}  // namespace takt::job
