// SPDX-License-Identifier: Apache-2.0
#include "coordinator/job/job_table.h"

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

const absl::Time kEnd = absl::FromUnixSeconds(1000);

// Job `number` was cancelled so many seconds after kEnd.
JobRecord Cancelled(int number, int seconds) {
  JobRecord job{.number = number};
  job.id = absl::StrCat("id-", number);
  job.name = absl::StrCat("job-", number);
  job.state = JobState::kCancelled;
  job.end_time = kEnd + absl::Seconds(seconds);
  return job;
}

class JobTableTest : public ::testing::Test {
 protected:
  JobTableTest() { context_.outbox = &outbox_; }

  JobTable Table(std::vector<JobRecord> jobs) {
    store::Snapshot snapshot;
    for (JobRecord& job : jobs) snapshot.last_number = job.number;
    snapshot.jobs = std::move(jobs);
    return {&context_, std::move(snapshot), Moment()};
  }
  static std::vector<std::string> Live(const JobTable& table) {
    std::vector<std::string> names;
    for (const auto& [number, job] : table.live()) names.push_back(job->record().name);
    return names;
  }
  static std::vector<std::string> Ended(const JobTable& table, int most) {
    std::vector<std::string> names;
    for (const EndedJob& job : table.FirstEnded(most)) names.push_back(job.name);
    return names;
  }

  Outbox outbox_;
  JobContext context_;
};

TEST_F(JobTableTest, AnEndedJobLeavesTheLiveOnesUntilItIsFound) {
  JobTable table = Table({Cancelled(1, 0), Cancelled(2, 0)});
  EXPECT_THAT(Live(table), ElementsAre("job-1", "job-2"));
  table.Settle();
  EXPECT_THAT(Live(table), IsEmpty());
  ASSERT_NE(table.Find("job-2"), nullptr);
  EXPECT_THAT(Live(table), ElementsAre("job-2"));
  table.Settle();
  EXPECT_THAT(Live(table), IsEmpty());
  EXPECT_EQ(table.num_ended(), 2);
}

TEST_F(JobTableTest, AJobThatHasNotEndedStaysLive) {
  JobTable table = Table({Cancelled(1, 0)});
  JobRecord waits;
  waits.id = "id";
  waits.name = "waits";
  table.Add(waits);
  table.Settle();
  EXPECT_THAT(Live(table), ElementsAre("waits"));
  EXPECT_EQ(table.FindById("id"), table.Find("waits"));
}

TEST_F(JobTableTest, ThoseThatEndedFirstAreListedFirst) {
  JobTable table = Table({Cancelled(1, 30), Cancelled(2, 10), Cancelled(3, 20)});
  table.Settle();
  EXPECT_THAT(Ended(table, 2), ElementsAre("job-2", "job-3"));
  table.Remove(*table.Find("job-2"));
  EXPECT_EQ(table.Find("job-2"), nullptr);
  EXPECT_EQ(table.FindById("id-2"), nullptr);
  EXPECT_THAT(Live(table), IsEmpty());
  EXPECT_THAT(Ended(table, 2), ElementsAre("job-3", "job-1"));
}

}  // namespace
}  // namespace takt::job
