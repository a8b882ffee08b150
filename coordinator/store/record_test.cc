// SPDX-License-Identifier: Apache-2.0
#include "coordinator/store/record.h"

#include <cstddef>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace takt::store {
namespace {

TEST(JobRecord, ForgetsOldTransitionsButTheFirstAndTheFirstRunning) {
  JobRecord job;
  int entered = 0;
  const auto enter = [&](JobState state) {
    job.Enter(state, absl::FromUnixSeconds(entered), absl::StrCat("number ", entered));
    ++entered;
  };
  for (const JobState state : {JobState::kQueued, JobState::kPlanning, JobState::kRunning})
    enter(state);
  for (int i = 0; i < 1000; ++i) {
    enter(JobState::kRecovering);
    enter(JobState::kRunning);
  }
  EXPECT_EQ(job.state, JobState::kRunning);
  EXPECT_EQ(job.reason, "number 2002");
  ASSERT_EQ(job.transitions.size(), kMostTransitions);
  EXPECT_EQ(job.num_transitions(), entered);
  EXPECT_EQ(job.transitions[0].reason, "number 0");
  EXPECT_EQ(job.transitions[1].reason, "number 2");
  const auto last = static_cast<std::size_t>(entered);
  for (std::size_t i = 2; i < kMostTransitions; ++i)
    EXPECT_EQ(job.transitions[i].reason, absl::StrCat("number ", last - kMostTransitions + i));
}

TEST(JobRecord, KnowsWhichTransitionsAreNew) {
  JobRecord job;
  for (int i = 0; i < 1000; ++i) {
    const std::int64_t seen = job.num_transitions();
    job.Enter(JobState::kQueued, absl::FromUnixSeconds(i), "");
    ASSERT_EQ(job.FirstTransitionAfter(seen), job.transitions.size() - 1);
    ASSERT_EQ(job.FirstTransitionAfter(seen + 1), job.transitions.size());
  }
  EXPECT_EQ(job.FirstTransitionAfter(990), kMostTransitions - 10);
  EXPECT_EQ(job.FirstTransitionAfter(0), 0u);
  EXPECT_EQ(job.FirstTransitionAfter(10), 2u);
  EXPECT_EQ(job.FirstTransitionAfter(1001), kMostTransitions);
}

TEST(JobRecord, KeepsTheLatestOfAJobThatNeverRan) {
  JobRecord job;
  for (int i = 0; i < 1000; ++i)
    job.Enter(i % 2 == 0 ? JobState::kQueued : JobState::kPlanning, absl::FromUnixSeconds(i), "");
  ASSERT_EQ(job.transitions.size(), kMostTransitions);
  EXPECT_EQ(job.transitions.front().time, absl::FromUnixSeconds(0));
  EXPECT_EQ(job.transitions.back().time, absl::FromUnixSeconds(999));
}

}  // namespace
}  // namespace takt::store
