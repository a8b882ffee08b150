// SPDX-License-Identifier: Apache-2.0
#include "coordinator/job/queue.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::job {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(GrantGangs, AJobThatFitsGetsItsGangInOrder) {
  const auto grants = GrantGangs({{"a", {.workers = 2}}}, {.idle = {"w0", "w1", "w2"}});
  EXPECT_THAT(grants[0].workers, ElementsAre("w0", "w1"));
}

TEST(GrantGangs, AGangIsGivenWholeOrNotAtAllAndTheReasonSaysWhoHasTheRest) {
  const auto grants =
      GrantGangs({{"a", {.workers = 4}}}, {.idle = {"w0", "w1"}, .held = {{"x", 2}}, .drained = 1});
  EXPECT_THAT(grants[0].workers, IsEmpty());
  EXPECT_EQ(grants[0].reason, "needs 4 workers, 2 idle: 2 held by job x, 1 drained");
}

TEST(GrantGangs, SeveralJobsGetDisjointGangs) {
  const auto grants =
      GrantGangs({{"a", {.workers = 1}}, {"b", {.workers = 2}}}, {.idle = {"w0", "w1", "w2"}});
  EXPECT_THAT(grants[0].workers, ElementsAre("w0"));
  EXPECT_THAT(grants[1].workers, ElementsAre("w1", "w2"));
}

TEST(GrantGangs, AJobThatFitsPassesOneThatDoesNot) {
  const auto grants =
      GrantGangs({{"big", {.workers = 3}}, {"small", {.workers = 1}}}, {.idle = {"w0", "w1"}});
  EXPECT_THAT(grants[0].workers, IsEmpty());
  EXPECT_THAT(grants[1].workers, ElementsAre("w0"));
}

TEST(GrantGangs, WhatAnEarlierJobGotIsNamedInTheReasonOfALaterOne) {
  const auto grants =
      GrantGangs({{"a", {.workers = 2}}, {"b", {.workers = 2}}}, {.idle = {"w0", "w1"}});
  EXPECT_EQ(grants[1].reason, "needs 2 workers, 0 idle: 2 held by job a");
}

TEST(GrantGangs, AJobWithoutAFixedSizeTakesAllThatAreIdle) {
  const auto grants =
      GrantGangs({{"a", {.workers = 1, .up_to_all = true}}}, {.idle = {"w0", "w1", "w2"}});
  EXPECT_EQ(grants[0].workers.size(), 3u);
}

TEST(GrantGangs, AnEmptyClusterIsSaidToBeEmpty) {
  EXPECT_EQ(GrantGangs({{"a", {.workers = 1}}}, {})[0].reason,
            "needs 1 worker, 0 idle: no other is attached");
}

}  // namespace
}  // namespace takt::job
