// SPDX-License-Identifier: Apache-2.0
#include "coordinator/job/board.h"

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::job {
namespace {

using store::JobRecord;
using store::JobState;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

JobRecord JobOf(int number, const std::string& owner) {
  JobRecord job{.number = number};
  job.id = absl::StrCat("id-", number);
  job.name = absl::StrCat("job-", number);
  job.owner = owner;
  return job;
}

std::vector<std::string> NamesOf(const std::vector<JobView>& jobs) {
  std::vector<std::string> names;
  for (const JobView& job : jobs) names.push_back(job->name);
  return names;
}

class BoardTest : public ::testing::Test {
 protected:
  std::vector<std::string> List(std::int64_t before, int limit,
                                const std::optional<std::string>& owner) {
    const auto count = [this](const JobRecord&) {
      ++looked_at_;
      return true;
    };
    return NamesOf(board_.List(before, limit, count, owner));
  }

  Board board_;
  int looked_at_ = 0;
};

TEST_F(BoardTest, APageOfAnOwnerLooksAtNoOtherJobs) {
  board_.Publish(JobOf(1, "user/a"));
  board_.Publish(JobOf(2, "user/a"));
  for (int number = 3; number < 100; ++number) board_.Publish(JobOf(number, "user/b"));
  EXPECT_THAT(List(0, 10, "user/a"), ElementsAre("job-2", "job-1"));
  EXPECT_THAT(List(2, 10, "user/a"), ElementsAre("job-1"));
  EXPECT_EQ(looked_at_, 3);
  EXPECT_THAT(List(0, 1, std::nullopt), ElementsAre("job-99"));
  board_.Remove("id-2");
  board_.Remove("id-1");
  EXPECT_THAT(List(0, 10, "user/a"), IsEmpty());
}

TEST_F(BoardTest, AWorkerHoldsARankWhileItsGenerationIsShown) {
  JobRecord job = JobOf(1, "");
  job.generation = Generation(1);
  board_.Publish(job);
  EXPECT_FALSE(board_.HoldsRank("job-1", "w0"));
  job.ranks = {{Rank(0), "w0", "a", "127.0.0.1"}};
  board_.Publish(job);
  EXPECT_TRUE(board_.HoldsRank("job-1", "w0"));
  EXPECT_FALSE(board_.HoldsRank("job-1", "w1"));
  EXPECT_FALSE(board_.HoldsRank("job-2", "w0"));
  job.generation = Generation(2);
  job.ranks = {{Rank(0), "w1", "a", "127.0.0.1"}};
  board_.Publish(job);
  EXPECT_FALSE(board_.HoldsRank("job-1", "w0"));
  EXPECT_TRUE(board_.HoldsRank("job-1", "w1"));
  job.ranks.clear();
  board_.Publish(job);
  EXPECT_FALSE(board_.HoldsRank("job-1", "w1"));
}

TEST_F(BoardTest, AHostHoldsARankIfOneOfItsNumberedWorkersDoes) {
  JobRecord job = JobOf(1, "");
  job.generation = Generation(1);
  job.ranks = {{Rank(0), "n1", "a", "127.0.0.1"},
               {Rank(1), "n1-a", "a", "127.0.0.1"},
               {Rank(2), "n10-0", "a", "127.0.0.1"},
               {Rank(3), "n2-x-3", "a", "127.0.0.1"}};
  board_.Publish(job);
  EXPECT_TRUE(board_.HoldsNumberedRank("job-1", "n10-"));
  EXPECT_TRUE(board_.HoldsNumberedRank("job-1", "n2-x-"));
  EXPECT_FALSE(board_.HoldsNumberedRank("job-1", "n1-"));
  EXPECT_FALSE(board_.HoldsNumberedRank("job-1", "n2-"));
  EXPECT_FALSE(board_.HoldsNumberedRank("job-2", "n10-"));
  job.generation = Generation(2);
  job.ranks = {{Rank(0), "n1-7", "a", "127.0.0.1"}};
  board_.Publish(job);
  EXPECT_TRUE(board_.HoldsNumberedRank("job-1", "n1-"));
  EXPECT_FALSE(board_.HoldsNumberedRank("job-1", "n10-"));
}

TEST_F(BoardTest, HeldJobsAreThoseThatWereShownLast) {
  EXPECT_FALSE(board_.IsHeld("j"));
  board_.ShowHeld({"j", "k"});
  EXPECT_TRUE(board_.IsHeld("j"));
  EXPECT_EQ(board_.FindByName("j"), nullptr);
  board_.ShowHeld({"k"});
  EXPECT_FALSE(board_.IsHeld("j"));
}

TEST_F(BoardTest, JobsAreCountedByTheStateThatIsShown) {
  JobRecord job = JobOf(1, "");
  board_.Publish(job);
  board_.Publish(JobOf(2, ""));
  job.state = JobState::kCancelled;
  board_.Publish(job);
  EXPECT_EQ(board_.CountByState()[JobState::kQueued], 1);
  EXPECT_EQ(board_.CountByState()[JobState::kCancelled], 1);
  board_.Remove("id-1");
  EXPECT_EQ(board_.CountByState()[JobState::kCancelled], 0);
}

}  // namespace
}  // namespace takt::job
