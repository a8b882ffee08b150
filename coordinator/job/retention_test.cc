// SPDX-License-Identifier: Apache-2.0
#include "coordinator/job/retention.h"

#include "coordinator/job/cluster_harness.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::job {
namespace {

using store::JobState;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr RetentionOptions kTwoJobs{.jobs = 2, .age = absl::InfiniteDuration()};
const absl::Time kNow = absl::FromUnixSeconds(1'000'000);

EndedJob Ended(const std::string& name, int hours_ago) {
  return {.name = name, .end = kNow - absl::Hours(hours_ago)};
}

TEST(JobsToForget, KeepsThoseThatEndedLast) {
  EXPECT_THAT(JobsToForget({Ended("b", 3), Ended("c", 2), Ended("a", 1)}, 3, kTwoJobs, kNow),
              ElementsAre("b"));
  EXPECT_THAT(JobsToForget({Ended("b", 3), Ended("a", 1)}, 2, kTwoJobs, kNow), IsEmpty());
}

TEST(JobsToForget, ForgetsThoseThatAreTooOld) {
  const RetentionOptions options{.jobs = 0, .age = absl::Hours(2)};
  EXPECT_THAT(JobsToForget({Ended("b", 3), Ended("c", 2), Ended("a", 1)}, 3, options, kNow),
              ElementsAre("b"));
}

TEST(JobsToForget, TakesAFewAtATimeTheOldestFirst) {
  const RetentionOptions options{.jobs = 1, .age = absl::InfiniteDuration(), .at_once = 2};
  EXPECT_THAT(JobsToForget({Ended("d", 4), Ended("b", 3), Ended("c", 2)}, 4, options, kNow),
              ElementsAre("d", "b"));
}

TEST(JobsToForget, TakesAsManyAsHaveFewStepsTogether) {
  const RetentionOptions options{.jobs = 1, .age = absl::InfiniteDuration(), .steps_at_once = 100};
  EndedJob a = Ended("a", 5), b = Ended("b", 4), c = Ended("c", 3), d = Ended("d", 2);
  a.steps = b.steps = c.steps = 50;
  EXPECT_THAT(JobsToForget({a, b, c, d}, 4, options, kNow), ElementsAre("a", "b"));
  a.steps = 1000;  // it goes alone
  EXPECT_THAT(JobsToForget({a, b, c, d}, 4, options, kNow), ElementsAre("a"));
}

TEST(JobsToForget, CountsThoseThatItWasNotGiven) {
  EXPECT_THAT(JobsToForget({Ended("d", 4)}, 100'000, kTwoJobs, kNow), ElementsAre("d"));
}

TEST_F(ClusterTest, OnlyEndedJobsAreForgottenAndTheirNamesAreFree) {
  for (const char* name : {"a", "b", "c"}) {
    ASSERT_TRUE(Submit(Spec(name, 1)).ok());
    ASSERT_TRUE(Cancel(name).ok());
    Advance(absl::Seconds(1));
  }
  ASSERT_TRUE(Submit(Spec("waits", 1)).ok());
  retention_ = kTwoJobs;
  Restart();
  Advance(absl::Seconds(2));
  EXPECT_FALSE(shown_.contains("a"));
  EXPECT_EQ(Job("b").state, JobState::kCancelled);
  EXPECT_EQ(Job("c").state, JobState::kCancelled);
  EXPECT_EQ(Job("waits").state, JobState::kQueued);
  EXPECT_EQ(store_->Load().value().jobs.size(), 3u);
  EXPECT_TRUE(Submit(Spec("a", 1)).ok());
}

}  // namespace
}  // namespace takt::job
