// SPDX-License-Identifier: Apache-2.0
// Tests what users and operators ask for.
#include "coordinator/job/cluster_harness.h"
#include "gmock/gmock.h"

namespace takt::job {
namespace {

using membership::WorkerState;
using store::JobState;
using ::testing::HasSubstr;

TEST_F(ClusterTest, ANameIsTakenUntilItsJobIsDeleted) {
  ASSERT_TRUE(Submit(Spec("j", 1)).ok());
  EXPECT_EQ(Submit(Spec("j", 1)).status().code(), absl::StatusCode::kAlreadyExists);
  ASSERT_TRUE(Cancel("j").ok());
  EXPECT_EQ(Submit(Spec("j", 1)).status().code(), absl::StatusCode::kAlreadyExists);
  ASSERT_TRUE(Delete("j").ok());
  EXPECT_TRUE(Submit(Spec("j", 1)).ok());
}

TEST_F(ClusterTest, ASubmitWithTheSameRequestIdAnswersAsBefore) {
  const auto first = Submit(Spec("j", 1), "r1");
  ASSERT_TRUE(first.ok());
  ASSERT_TRUE(Cancel("j").ok());
  const auto again = Submit(Spec("j", 1), "r1");
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->id, first->id);
  EXPECT_EQ(again->state, JobState::kQueued);
  EXPECT_EQ(Job("j").state, JobState::kCancelled);
}

TEST_F(ClusterTest, ARequestIdIsRememberedAcrossARestart) {
  const auto first = Submit(Spec("j", 1), "r1");
  Restart();
  EXPECT_EQ(Submit(Spec("j", 1), "r1")->id, first->id);
}

TEST_F(ClusterTest, TheSameRequestTwiceInOneBatchIsDoneOnce) {
  const config::JobSpec spec = Spec("j", 1);
  std::vector<std::string> ids;
  for (int i = 0; i < 2; ++i) {
    cluster_->Submit(
        {.request_id = "r1", .spec = "", .parsed = spec},
        [&](absl::StatusOr<store::JobRecord> job) { ids.push_back(job.value().id); },
        Moment::Of(clock_));
  }
  Settle();
  ASSERT_EQ(ids.size(), 2u);
  EXPECT_EQ(ids[0], ids[1]);
}

TEST_F(ClusterTest, AJobsOwnerIsKeptOverARestart) {
  cluster_->Submit(
      {.request_id = "r1", .spec = "", .parsed = Spec("j", 1), .owner = "user/alice"},
      [](absl::StatusOr<store::JobRecord>) {}, Moment::Of(clock_));
  Settle();
  Restart();
  EXPECT_EQ(cluster_->OwnerOf("j"), "user/alice");
  EXPECT_EQ(cluster_->OwnerOf("k"), std::nullopt);
}

TEST_F(ClusterTest, ARequestIdUsedForAnotherJobIsRefused) {
  ASSERT_TRUE(Submit(Spec("j", 1), "r1").ok());
  const auto status = Submit(Spec("k", 1), "r1").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.ToString(), HasSubstr("was used for job j"));
}

TEST_F(ClusterTest, CancellingAWaitingJobEndsItAtOnce) {
  ASSERT_TRUE(Submit(Spec("j", 1)).ok());
  EXPECT_EQ(Cancel("j")->state, JobState::kCancelled);
  AttachWorkers(1);
  EXPECT_EQ(Job("j").state, JobState::kCancelled);
}

TEST_F(ClusterTest, CancellingAJobWhilePlanningFreesItsWorkers) {
  AttachWorkers(1);
  hold_plans_ = true;
  ASSERT_TRUE(Submit(Spec("j", 1)).ok());
  EXPECT_EQ(Cancel("j")->state, JobState::kCancelled);
  EXPECT_EQ(StateOf("w0"), WorkerState::kIdle);
  hold_plans_ = false;
  Settle();  // the plan comes too late
  EXPECT_EQ(Job("j").state, JobState::kCancelled);
}

TEST_F(ClusterTest, CancellingARunningJobAbortsItsRanks) {
  AttachWorkers(2);
  const control::JobKey key = RunJob("j", 2);
  EXPECT_EQ(Cancel("j")->state, JobState::kRunning);
  ASSERT_NE(Session("w0").Last<control::Abort>(), nullptr);
  Say("w0", key, 0, control::Phase::kAborted);
  Say("w1", key, 1, control::Phase::kAborted);
  EXPECT_EQ(Job("j").state, JobState::kCancelled);
  EXPECT_EQ(Job("j").reason, "cancelled by request");
  EXPECT_TRUE(Job("j").fault.empty());
  EXPECT_EQ(StateOf("w1"), WorkerState::kIdle);
}

TEST_F(ClusterTest, AnAcknowledgedCancelSurvivesARestart) {
  AttachWorkers(1);
  const control::JobKey key = RunJob("j", 1);
  ASSERT_TRUE(Cancel("j").ok());
  Restart();
  EXPECT_EQ(Job("j").state, JobState::kRunning);
  Attach("w0", "a", membership::Hold{{"j", key.generation}, Rank(0)});
  ASSERT_NE(Session("w0").Last<control::Abort>(), nullptr);
  Say("w0", key, 0, control::Phase::kAborted);
  EXPECT_EQ(Job("j").state, JobState::kCancelled);
}

TEST_F(ClusterTest, AnEndedJobCannotBeCancelled) {
  AttachWorkers(1);
  const control::JobKey key = RunJob("j", 1);
  Say("w0", key, 0, control::Phase::kFailed, "boom");
  const absl::Status status = Cancel("j").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(status.message(),
            "job j is FAILED already: only a job that has not ended can be cancelled; takt delete "
            "j removes it");
  EXPECT_EQ(Cancel("nobody").status().code(), absl::StatusCode::kNotFound);
}

TEST_F(ClusterTest, OnlyAnEndedJobIsDeletedAndWithItItsSteps) {
  AttachWorkers(1);
  const control::JobKey key = RunJob("j", 1);
  Report("w0", key, 0, 1);
  const auto status = Delete("j");
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.ToString(), HasSubstr("job j is RUNNING; cancel it first"));
  Say("w0", key, 0, control::Phase::kFailed, "boom");
  const std::string id = Job("j").id;
  ASSERT_TRUE(Delete("j", "r1").ok());
  EXPECT_TRUE(store_->ReadSteps(id, StepId(0), 10).value().empty());
  EXPECT_TRUE(Delete("j", "r1").ok());
  EXPECT_EQ(Delete("j").code(), absl::StatusCode::kNotFound);
}

// Otherwise a worker that was away could take the old job's rank for the new one's.
TEST_F(ClusterTest, AJobOfADeletedOnesNameGoesOnFromItsGeneration) {
  AttachWorkers(1);
  const control::JobKey key = RunJob("j", 1);
  Say("w0", key, 0, control::Phase::kFailed, "boom");
  ASSERT_TRUE(Delete("j").ok());
  Restart();
  AttachWorkers(1);
  EXPECT_EQ(RunJob("j", 1).generation, Generation(2));
}

TEST_F(ClusterTest, ADrainedWorkerTakesNoNewJobAndKeepsItsOld) {
  AttachWorkers(1);
  const control::JobKey key = RunJob("j", 1);
  EXPECT_TRUE(SetDrained("w0", true)->drained);
  EXPECT_EQ(Job("j").state, JobState::kRunning);
  ASSERT_TRUE(Submit(Spec("k", 1)).ok());
  Say("w0", key, 0, control::Phase::kFailed, "boom");
  EXPECT_EQ(Job("k").reason, "needs 1 worker, 0 idle: 1 drained");
  Restart();
  Attach("w0");
  EXPECT_EQ(Job("k").state, JobState::kQueued);
  ASSERT_TRUE(SetDrained("w0", false).ok());
  EXPECT_EQ(Job("k").state, JobState::kStarting);
  EXPECT_EQ(SetDrained("nobody", true).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(ClusterTest, ADrainRequestSentAgainDoesNotDrainAgain) {
  AttachWorkers(1);
  ASSERT_TRUE(SetDrained("w0", true, "r1").ok());
  ASSERT_TRUE(SetDrained("w0", false, "r2").ok());
  EXPECT_TRUE(SetDrained("w0", true, "r1")->drained);
  EXPECT_FALSE(cluster_->workers().at("w0").drained);
}

}  // namespace
}  // namespace takt::job
