// SPDX-License-Identifier: Apache-2.0
#include "coordinator/job/outbox.h"

#include <memory>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::job {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

store::JobRecord Job(const std::string& id, const std::string& reason) {
  return {.id = id, .reason = reason};
}

JobView Shown(const std::string& id, const std::string& reason) {
  return std::make_shared<const store::JobRecord>(Job(id, reason));
}

TEST(Outbox, KeepsTheNewestRecordOfEachJobAndTheOrderOfTheRest) {
  Outbox all;
  all.changes = {.jobs = {Job("a", "1"), Job("b", "1")}, .drained = {{"w", true}}};
  all.published = {Shown("a", "1"), Shown("b", "1")};
  Outbox more;
  more.changes = {.jobs = {Job("a", "2")}, .steps = {{.job_id = "a"}}, .drained = {{"w", false}}};
  more.published = {Shown("a", "2")};
  more.workers_lost = 1;
  all.Append(std::move(more));
  ASSERT_THAT(all.changes.jobs, SizeIs(2));
  EXPECT_EQ(all.changes.jobs[0].id, "b");
  EXPECT_EQ(all.changes.jobs[1].reason, "2");
  EXPECT_THAT(all.changes.steps, SizeIs(1));
  EXPECT_FALSE(all.changes.drained.at("w"));
  ASSERT_THAT(all.published, SizeIs(2));
  EXPECT_EQ(all.published[1]->reason, "2");
  EXPECT_EQ(all.workers_lost, 1);
}

TEST(Outbox, DoesNotShowWhatIsRemovedLater) {
  Outbox all;
  all.published = {Shown("a", "1")};
  Outbox more;
  more.removed = {"a"};
  all.Append(std::move(more));
  EXPECT_TRUE(all.published.empty());
  EXPECT_THAT(all.removed, ElementsAre("a"));
}

}  // namespace
}  // namespace takt::job
