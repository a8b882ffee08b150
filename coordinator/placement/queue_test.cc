// SPDX-License-Identifier: Apache-2.0
#include "coordinator/placement/queue.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::placement {
namespace {

using config::DeviceKind;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(GrantGangs, AJobThatFitsGetsItsGangInOrder) {
  const auto grants = GrantGangs({{"a", {.workers = 2}}}, {.idle = {{"w0"}, {"w1"}, {"w2"}}});
  EXPECT_THAT(grants[0].workers, ElementsAre("w0", "w1"));
}

TEST(GrantGangs, AGangIsGivenWholeOrNotAtAllAndTheReasonSaysWhoHasTheRest) {
  const auto grants = GrantGangs({{"a", {.workers = 4}}},
                                 {.idle = {{"w0"}, {"w1"}}, .held = {{"x", 2}}, .drained = 1});
  EXPECT_THAT(grants[0].workers, IsEmpty());
  EXPECT_EQ(grants[0].reason, "needs 4 workers, 2 idle: 2 held by job x, 1 drained");
}

TEST(GrantGangs, SeveralJobsGetDisjointGangs) {
  const auto grants = GrantGangs({{"a", {.workers = 1}}, {"b", {.workers = 2}}},
                                 {.idle = {{"w0"}, {"w1"}, {"w2"}}});
  EXPECT_THAT(grants[0].workers, ElementsAre("w0"));
  EXPECT_THAT(grants[1].workers, ElementsAre("w1", "w2"));
}

TEST(GrantGangs, AJobThatFitsPassesOneThatDoesNot) {
  const auto grants =
      GrantGangs({{"big", {.workers = 3}}, {"small", {.workers = 1}}}, {.idle = {{"w0"}, {"w1"}}});
  EXPECT_THAT(grants[0].workers, IsEmpty());
  EXPECT_THAT(grants[1].workers, ElementsAre("w0"));
}

TEST(GrantGangs, WhatAnEarlierJobGotIsNamedInTheReasonOfALaterOne) {
  const auto grants =
      GrantGangs({{"a", {.workers = 2}}, {"b", {.workers = 2}}}, {.idle = {{"w0"}, {"w1"}}});
  EXPECT_EQ(grants[1].reason, "needs 2 workers, 0 idle: 2 held by job a");
}

TEST(GrantGangs, AJobWithoutAFixedSizeTakesAllThatAreIdle) {
  const auto grants =
      GrantGangs({{"a", {.workers = 1, .up_to_all = true}}}, {.idle = {{"w0"}, {"w1"}, {"w2"}}});
  EXPECT_EQ(grants[0].workers.size(), 3u);
}

// Two of the four workers have a GPU, and one of these has NCCL.
std::vector<IdleWorker> Mixed() {
  return {{.name = "gpu0", .has_gpu = true, .has_nccl = true},
          {.name = "gpu1", .has_gpu = true},
          {.name = "cpu0"},
          {.name = "cpu1"}};
}

TEST(GrantGangs, AJobOnGpusGetsWorkersThatHaveOne) {
  const auto grants = GrantGangs(
      {{"a", {.workers = 1, .up_to_all = true, .device = DeviceKind::kCuda}}}, {.idle = Mixed()});
  EXPECT_THAT(grants[0].workers, ElementsAre("gpu0", "gpu1"));
}

TEST(GrantGangs, CpusAndGpusAreNotMixedAndTheReasonSaysWhatWouldTakeThem) {
  const auto grants = GrantGangs({{"a", {.workers = 3, .device = DeviceKind::kCuda}},
                                  {"b", {.workers = 2, .device = DeviceKind::kCuda, .nccl = true}}},
                                 {.idle = Mixed()});
  EXPECT_EQ(grants[0].reason,
            "needs 3 workers with a GPU, 2 idle: 2 idle without, which device: cpu would take");
  EXPECT_EQ(grants[1].reason,
            "needs 2 workers with a GPU of its own and NCCL, 1 idle: 3 idle without, which "
            "transport: auto "
            "or device: cpu would take");
}

TEST(GrantGangs, ForNcclOneWorkerOfAGpuIsTaken) {
  const Capacity capacity{.idle = {{.name = "a", .has_gpu = true, .has_nccl = true, .gpu = "0"},
                                   {.name = "b", .has_gpu = true, .has_nccl = true, .gpu = "0"},
                                   {.name = "c", .has_gpu = true, .has_nccl = true, .gpu = "1"}}};
  Need need{.workers = 2, .device = DeviceKind::kCuda, .nccl = true};
  EXPECT_THAT(GrantGangs({{"job", need}}, capacity)[0].workers, ElementsAre("a", "c"));
  need.workers = 3;
  EXPECT_TRUE(GrantGangs({{"job", need}}, capacity)[0].workers.empty());
  need.nccl = false;
  EXPECT_EQ(GrantGangs({{"job", need}}, capacity)[0].workers.size(), 3u);
}

TEST(GrantGangs, AJobOnCpusLeavesTheGpusToOthersWhereItCan) {
  const auto grants = GrantGangs({{"a", {.workers = 2}}}, {.idle = Mixed()});
  EXPECT_THAT(grants[0].workers, ElementsAre("cpu0", "cpu1"));
  EXPECT_EQ(GrantGangs({{"a", {.workers = 4}}}, {.idle = Mixed()})[0].workers.size(), 4u);
}

TEST(GrantGangs, AnEmptyClusterIsSaidToBeEmpty) {
  EXPECT_EQ(GrantGangs({{"a", {.workers = 1}}}, {})[0].reason,
            "needs 1 worker, 0 idle: no other is attached");
}

}  // namespace
}  // namespace takt::placement
