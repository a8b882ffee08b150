// SPDX-License-Identifier: Apache-2.0
// Tests what a coordinator does with ranks of jobs that its state does not know, or that another
// cluster has.
#include "absl/strings/str_cat.h"
#include "common/control/shared_assignment.h"
#include "coordinator/job/cluster_harness.h"
#include "coordinator/store/memory_store.h"
#include "gmock/gmock.h"

namespace takt::job {
namespace {

using membership::Hold;
using membership::WorkerState;
using store::JobState;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kOtherCluster[] = "0123";

class HeldTest : public ClusterTest {
 protected:
  // A job trains on two workers, and its coordinator loses its state.
  void LoseStateOf(const config::JobSpec& spec) {
    owner_ = "user/ada";
    AttachWorkers(2);
    key_ = RunJob(spec);
    ranks_ = Job(spec.name).ranks;
    assignment_ = *Session(ranks_[0].worker).Last<control::Prepare>()->assignment();
    store_ = store::NewMemoryStore();
    Restart();
  }

  // The worker of this rank attaches, as the rank of another cluster.
  FakeWorker& Return(int rank) {
    return AttachHolding(ranks_[rank].worker, {.key = key_,
                                               .rank = Rank(rank),
                                               .last_step = StepId(5),
                                               .cluster_id = kOtherCluster,
                                               .describes = true});
  }

  control::RankDescription Description(int rank) const {
    control::RankDescription description{.key = key_,
                                         .rank = Rank(rank),
                                         .assignment_hash = "hash",
                                         .acknowledged_step = StepId(rank == 0 ? 3 : 4),
                                         .epoch = 50};
    if (rank > 0) return description;
    description.assignment = control::SharedText(assignment_);
    description.schedule = "1f1b";
    description.saved = StepId(2);
    description.highest_generation = Generation(7);
    return description;
  }

  void Describe(const control::RankDescription& description) {
    const std::string& worker = ranks_[description.rank.value()].worker;
    cluster_->Described(workers_.at(worker).id, description, Moment::Of(clock_));
    Settle();
  }

  // The worker has refused the welcome, since it holds a rank of another cluster.
  void Refuse(const FakeWorker& worker) {
    cluster_->Refused(worker.id,
                      {.cause = control::RefusalCause::kOtherCluster, .reason = "another cluster"},
                      Moment::Of(clock_));
    Settle();
  }

  void ReturnAll() {
    for (const int rank : {0, 1}) {
      Return(rank);
      Describe(Description(rank));
    }
  }

  std::string WhyNotAdoptable() {
    const std::vector<HeldJobView> held = cluster_->ListHeld();
    return held.size() == 1 ? held[0].why_not : absl::StrCat(held.size(), " jobs are held");
  }

  control::JobKey key_;
  std::vector<control::BoundRank> ranks_;
  control::Assignment assignment_;
};

TEST_F(HeldTest, AJobThatTheStateDoesNotKnowTrainsOn) {
  LoseStateOf(Spec("j", 2, 100));
  for (const int rank : {0, 1}) EXPECT_EQ(Return(rank).session->Last<control::Abort>(), nullptr);
  EXPECT_EQ(StateOf("w0"), WorkerState::kBusy);
  const control::Describe* const question = Session(ranks_[0].worker).Last<control::Describe>();
  ASSERT_NE(question, nullptr);
  EXPECT_TRUE(question->whole);
  EXPECT_FALSE(Session(ranks_[1].worker).Last<control::Describe>()->whole);

  Heartbeat(ranks_[1].worker, key_, 1, 8, "1F0");
  Describe(Description(0));
  const std::vector<HeldJobView> held = cluster_->ListHeld();
  ASSERT_EQ(held.size(), 1u);
  EXPECT_EQ(held[0].key, key_);
  EXPECT_EQ(held[0].owner, "user/ada");
  EXPECT_EQ(held[0].cluster_id, kOtherCluster);
  EXPECT_EQ(held[0].num_ranks, 2);
  EXPECT_EQ(held[0].ranks[0].last_step, StepId(5));
  EXPECT_EQ(held[0].ranks[1].last_step, StepId(8));
  EXPECT_TRUE(cluster_->IsHeld("w0"));

  // Nothing else gets its workers, and nobody takes its name.
  ASSERT_TRUE(Submit(Spec("k", 1)).ok());
  EXPECT_EQ(Job("k").state, JobState::kQueued);
  EXPECT_THAT(Job("k").reason, HasSubstr("held by job j"));
  EXPECT_EQ(Submit(Spec("j", 1)).status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(cluster_->NamesOfHeld(), ElementsAre("j"));
  EXPECT_THAT(std::string(Pause("j").status().message()), HasSubstr("`takt adopt j`"));
}

TEST_F(HeldTest, AnAdoptedJobGoesOnWithStepsFromThenOn) {
  LoseStateOf(SavingSpec("j", 2, 6));
  ReturnAll();
  ASSERT_EQ(WhyNotAdoptable(), "");
  const auto adopted = Adopt("j", "request");
  ASSERT_TRUE(adopted.ok()) << adopted.status();
  EXPECT_EQ(adopted->state, JobState::kRunning);
  EXPECT_EQ(adopted->id, assignment_.job_id);
  EXPECT_EQ(adopted->owner, "user/ada");
  EXPECT_EQ(adopted->generation, key_.generation);
  EXPECT_EQ(adopted->steps, 6);
  EXPECT_EQ(adopted->plan.schedule, "1f1b");
  EXPECT_EQ(adopted->checkpoint->step, StepId(2));
  EXPECT_THAT(cluster_->ListHeld(), IsEmpty());
  for (const char* worker : {"w0", "w1"}) {
    ASSERT_NE(Session(worker).Last<control::Adopt>(), nullptr);
    EXPECT_EQ(Session(worker).Last<control::Adopt>()->key, key_);
    EXPECT_EQ(Session(worker).Last<control::Abort>(), nullptr);
  }
  EXPECT_EQ(Adopt("j", "request")->id, adopted->id) << "the same request again";
  EXPECT_TRUE(rendezvous_->Set("j", key_.generation, "k", "v").ok());

  // Steps 4 and before were acknowledged to one of the ranks, so they do not come again from it.
  for (const int step : {4, 5, 6}) {
    Report(ranks_[0].worker, key_, 0, step);
    if (step > 4) Report(ranks_[1].worker, key_, 1, step);
  }
  EXPECT_THAT(StoredSteps("j"), ElementsAre(5, 6));
  SaveAt(key_, 6);
  // A coordinator of the former cluster had epoch 50 at most.
  EXPECT_GT(Session(ranks_[0].worker).Last<control::CommitCheckpoint>()->epoch, 1000);
  SayAll(key_, control::Phase::kFinished);
  EXPECT_EQ(Job("j").state, JobState::kSucceeded);
  EXPECT_EQ(StateOf("w0"), WorkerState::kIdle);
}

// The steps before the adoption were told to the coordinator that is gone, and do not come again.
TEST_F(HeldTest, AnAdoptedJobCommitsACheckpointOfAnEarlierStep) {
  LoseStateOf(SavingSpec("j", 2, 6));
  ReturnAll();
  ASSERT_TRUE(Adopt("j", "request").ok());
  for (const int rank : {0, 1}) ReportPart(ranks_[rank].worker, key_, rank, 4);
  const control::CommitCheckpoint* const commit =
      Session(ranks_[0].worker).Last<control::CommitCheckpoint>();
  ASSERT_NE(commit, nullptr);
  EXPECT_EQ(commit->step, StepId(4));
}

TEST_F(HeldTest, AnAdoptedJobSurvivesARestart) {
  LoseStateOf(SavingSpec("j", 2, 100));
  ReturnAll();
  ASSERT_TRUE(Adopt("j").ok());
  Restart();
  ASSERT_EQ(Job("j").state, JobState::kRunning);
  for (const int rank : {0, 1}) {
    const std::string& worker = ranks_[rank].worker;
    Attach(worker, "a", Hold{key_, Rank(rank)});
    EXPECT_EQ(Session(worker).Last<control::Abort>(), nullptr);
  }
  EXPECT_EQ(Job("j").reason, "training");
  EXPECT_THAT(cluster_->ListHeld(), IsEmpty());
}

TEST_F(HeldTest, AnAdoptedJobRemembersAfterARestartWhichStepsDoNotCome) {
  LoseStateOf(SavingSpec("j", 2, 100));
  ReturnAll();
  ASSERT_TRUE(Adopt("j").ok());
  Restart();
  for (const int rank : {0, 1}) Attach(ranks_[rank].worker, "a", Hold{key_, Rank(rank)});
  for (const int rank : {0, 1}) Report(ranks_[rank].worker, key_, rank, 5);
  EXPECT_THAT(StoredSteps("j"), ElementsAre(5));
}

TEST_F(HeldTest, RanksThatMissedTheirAdoptionAreToldByTheNextCoordinator) {
  LoseStateOf(SavingSpec("j", 2, 100));
  ReturnAll();
  ASSERT_TRUE(Adopt("j").ok());
  Restart();  // after the commit, and before any worker read the Adopt
  for (const int rank : {0, 1}) {
    const FakeWorker& back = Return(rank);
    Refuse(back);
    ASSERT_NE(back.session->Last<control::Adopt>(), nullptr);
    EXPECT_EQ(back.session->Last<control::Adopt>()->key, key_);
    EXPECT_EQ(back.session->Last<control::Abort>(), nullptr);
    EXPECT_EQ(cluster_->workers().at(back.name).refuses, "");
  }
  EXPECT_EQ(Job("j").reason, "training");
  EXPECT_THAT(cluster_->ListHeld(), IsEmpty());
  for (const int rank : {0, 1}) Report(ranks_[rank].worker, key_, rank, 5);
  EXPECT_THAT(StoredSteps("j"), ElementsAre(5));
}

TEST_F(HeldTest, ALaterGenerationOfAnAdoptedJobWasNotAdopted) {
  LoseStateOf(SavingSpec("j", 2, 100));
  ReturnAll();
  ASSERT_TRUE(Adopt("j").ok());
  EXPECT_TRUE(Job("j").adoption.has_value());
  Say(ranks_[0].worker, key_, 0, control::Phase::kFailed, "boom");
  Say(ranks_[1].worker, key_, 1, control::Phase::kAborted);
  ASSERT_EQ(Job("j").state, JobState::kStarting);
  EXPECT_FALSE(Job("j").adoption.has_value());
}

TEST_F(HeldTest, ARankThatMissedItsAdoptionIsToldAgain) {
  LoseStateOf(SavingSpec("j", 2, 100));
  ReturnAll();
  ASSERT_TRUE(Adopt("j").ok());
  const FakeWorker& back = Return(1);  // its stream broke before it read the Adopt
  Refuse(back);
  ASSERT_NE(back.session->Last<control::Adopt>(), nullptr);
  EXPECT_EQ(back.session->Last<control::Abort>(), nullptr);
  EXPECT_EQ(cluster_->workers().at(back.name).refuses, "");
  EXPECT_EQ(Job("j").state, JobState::kRunning);
  EXPECT_THAT(cluster_->ListHeld(), IsEmpty());
  // Once it belongs to this cluster, another one may adopt it.
  Attach(ranks_[1].worker, "a", Hold{key_, Rank(1)});
  Return(1);
  EXPECT_TRUE(cluster_->IsHeld(ranks_[1].worker));
}

TEST_F(HeldTest, TheGenerationAfterAnAdoptionIsAboveAllThatAnybodyMayHaveSeen) {
  LoseStateOf(SavingSpec("j", 2, 100));
  ReturnAll();
  ASSERT_TRUE(Adopt("j").ok());
  Say(ranks_[0].worker, key_, 0, control::Phase::kFailed, "boom");
  Say(ranks_[1].worker, key_, 1, control::Phase::kAborted);
  ASSERT_EQ(Job("j").state, JobState::kStarting);
  EXPECT_EQ(Job("j").generation, Generation(1007));
  const auto next = Session("w0").Last<control::Prepare>()->assignment();
  EXPECT_EQ(next->saved, StepId(2));
  EXPECT_GT(next->epoch, 1000);
}

TEST(HeldJobs, AnAdoptedJobHasTheVocabularyOfItsPlan) {
  HeldJob job{.key = {"j", Generation(1)}};
  job.ranks["w0"].description = control::RankDescription();
  job.assignment = control::Assignment{.vocabulary_ends = {1, 3}};
  EXPECT_THAT(AdoptionOf(job, /*epoch=*/1, Moment()).record.plan.vocabulary_ends,
              ElementsAre(1, 3));
}

TEST(HeldJobs, AnAdoptedJobThatWentOnFromMemoryHasItsCheckpointAndKeepsCopies) {
  HeldJob job{.key = {"j", Generation(2)}};
  job.ranks["w0"].description = control::RankDescription{.resumed = StepId(9), .from_memory = true};
  job.assignment = control::Assignment{.saved = StepId(4), .copies = {.every_steps = 2}};
  const store::JobRecord record = AdoptionOf(job, /*epoch=*/1, Moment()).record;
  ASSERT_TRUE(record.checkpoint.has_value());
  EXPECT_EQ(record.checkpoint->step, StepId(4)) << "no file has step 9";
  EXPECT_EQ(record.resumed_step, StepId(4));
  EXPECT_EQ(record.memory_step, StepId(9));
  EXPECT_EQ(record.plan.copy_every_steps, 2);
}

TEST_F(HeldTest, AJobOfWhichARankIsMissingCannotBeAdopted) {
  LoseStateOf(Spec("j", 2, 100));
  Return(0);
  EXPECT_EQ(WhyNotAdoptable(), "rank 0 has not described the job yet");
  Describe(Description(0));
  EXPECT_EQ(WhyNotAdoptable(), "rank 1 is not here");
  const absl::Status status = Adopt("j").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.ToString(), HasSubstr("is not here"));
  Return(1);
  EXPECT_THAT(WhyNotAdoptable(), HasSubstr("has not described itself yet"));
  Describe(Description(1));
  EXPECT_EQ(WhyNotAdoptable(), "");
  Detach(ranks_[1].worker);
  EXPECT_THAT(WhyNotAdoptable(), HasSubstr("is not here"));
  EXPECT_EQ(Session(ranks_[0].worker).Last<control::Abort>(), nullptr);
}

TEST_F(HeldTest, OfRanksThatWereNamedInTheirAssignmentTheMissingWorkerIsNamed) {
  LoseStateOf(Spec("j", 2, 100));
  assignment_.sparse_meeting = false;
  assignment_.ranks = ranks_;
  Return(0);
  Describe(Description(0));
  EXPECT_EQ(WhyNotAdoptable(), absl::StrCat("rank 1 (", ranks_[1].worker, ") is not here"));
  Return(1);
  Describe(Description(1));
  EXPECT_EQ(WhyNotAdoptable(), "");
}

TEST_F(HeldTest, ARankThatTwoWorkersClaimCannotBeAdopted) {
  LoseStateOf(Spec("j", 2, 100));
  ReturnAll();
  AttachHolding("w7", {.key = key_,
                       .rank = Rank(1),
                       .last_step = StepId(5),
                       .cluster_id = kOtherCluster,
                       .describes = true});
  cluster_->Described(workers_.at("w7").id, Description(1), Moment::Of(clock_));
  Settle();
  EXPECT_EQ(WhyNotAdoptable(), "3 workers claim one of its 2 ranks");
}

TEST_F(HeldTest, AnAdoptedJobIsBoundToTheWorkersThatClaimItsRanks) {
  LoseStateOf(Spec("j", 2, 100));
  ASSERT_TRUE(assignment_.ranks.empty());
  ReturnAll();
  ASSERT_TRUE(Adopt("j").ok());
  const std::vector<control::BoundRank> bound = Job("j").ranks;
  ASSERT_EQ(bound.size(), 2u);
  for (const int rank : {0, 1}) {
    EXPECT_EQ(bound[rank].rank, Rank(rank));
    EXPECT_EQ(bound[rank].worker, ranks_[rank].worker);
    EXPECT_EQ(bound[rank].incarnation, ranks_[rank].incarnation);
  }
}

TEST_F(HeldTest, RanksThatDoNotAgreeCannotBeAdopted) {
  LoseStateOf(Spec("j", 2, 100));
  ReturnAll();
  control::RankDescription other = Description(1);
  other.assignment_hash = "other";
  Describe(other);
  EXPECT_THAT(WhyNotAdoptable(), HasSubstr("another assignment than rank 0"));
  Describe(Description(1));
  EXPECT_EQ(WhyNotAdoptable(), "");
  AttachHolding("w7", {.key = {"j", Generation(9)},
                       .rank = Rank(0),
                       .cluster_id = kOtherCluster,
                       .describes = true});
  const absl::Status status = Adopt("j").status();
  EXPECT_THAT(status.ToString(), HasSubstr("claims generation"));
}

TEST_F(HeldTest, WhatCannotBeReadIsNotAdopted) {
  LoseStateOf(SavingSpec("j", 2, 100));
  ReturnAll();
  control::RankDescription wrong = Description(0);
  wrong.directory_error = "EIO";
  Describe(wrong);
  EXPECT_EQ(WhyNotAdoptable(), "rank 0 cannot read the checkpoints: EIO");
  assignment_.job_id = "../x";
  Describe(Description(0));
  EXPECT_THAT(WhyNotAdoptable(), HasSubstr("no id of the job"));
}

TEST_F(HeldTest, AWorkerWhoseProgramIsTooOldIsHeldAndCanOnlyBeAbandoned) {
  Attach("w0", "a", Hold{{"ghost", Generation(3)}, Rank(0)});
  EXPECT_EQ(Session("w0").Last<control::Abort>(), nullptr);
  EXPECT_EQ(Session("w0").Last<control::Describe>(), nullptr);
  EXPECT_THAT(WhyNotAdoptable(), HasSubstr("program is too old to be adopted"));
  ASSERT_TRUE(Abandon("ghost").ok());
  ASSERT_NE(Session("w0").Last<control::Abort>(), nullptr);
  Say("w0", {"ghost", Generation(3)}, 0, control::Phase::kAborted);
  EXPECT_EQ(StateOf("w0"), WorkerState::kIdle);
}

TEST_F(HeldTest, AnAbandonedJobIsAbortedAlsoOnWorkersThatComeBackLater) {
  LoseStateOf(Spec("j", 2, 100));
  Return(0);
  ASSERT_TRUE(Abandon("j").ok());
  EXPECT_NE(Session(ranks_[0].worker).Last<control::Adopt>(), nullptr);
  ASSERT_NE(Session(ranks_[0].worker).Last<control::Abort>(), nullptr);
  EXPECT_NE(Return(1).session->Last<control::Abort>(), nullptr);
  EXPECT_EQ(Abandon("j").code(), absl::StatusCode::kNotFound);
  for (const int rank : {0, 1}) Say(ranks_[rank].worker, key_, rank, control::Phase::kAborted);
  ASSERT_TRUE(Submit(Spec("j", 2)).ok());
  EXPECT_EQ(Job("j").state, JobState::kStarting);
}

TEST_F(HeldTest, AnAbandonedRankThatComesBackOfThisClusterIsAborted) {
  LoseStateOf(Spec("j", 2, 100));
  const std::string cluster_id = Return(0).session->Last<control::Welcome>()->cluster_id;
  ASSERT_TRUE(Abandon("j").ok());
  // Its stream broke after it had read the Adopt.
  const FakeWorker& back =
      AttachHolding(ranks_[0].worker,
                    {.key = key_, .rank = Rank(0), .cluster_id = cluster_id, .describes = true});
  EXPECT_NE(back.session->Last<control::Abort>(), nullptr);
  EXPECT_THAT(cluster_->ListHeld(), IsEmpty());
}

TEST_F(HeldTest, AWorkerThatIsTakenOverAtItsReturnGetsWorkAgain) {
  LoseStateOf(Spec("j", 2, 100));
  Return(0);
  ASSERT_TRUE(Abandon("j").ok());
  const FakeWorker& back = Return(1);
  Refuse(back);
  EXPECT_EQ(cluster_->workers().at(back.name).refuses, "");
  for (const int rank : {0, 1}) Say(ranks_[rank].worker, key_, rank, control::Phase::kAborted);
  ASSERT_TRUE(Submit(Spec("k", 2)).ok());
  EXPECT_EQ(Job("k").state, JobState::kStarting);
}

TEST_F(HeldTest, AHeldJobIsAbandonedByItselfOnlyIfToldSo) {
  abandon_held_after_ = absl::Minutes(1);
  LoseStateOf(Spec("j", 1, 100));
  Return(0);
  AdvanceHearing({ranks_[0].worker}, absl::Seconds(59));
  EXPECT_EQ(Session(ranks_[0].worker).Last<control::Abort>(), nullptr);
  AdvanceHearing({ranks_[0].worker}, absl::Seconds(2));
  EXPECT_NE(Session(ranks_[0].worker).Last<control::Abort>(), nullptr);
}

TEST_F(HeldTest, TheEndOfAHeldRankIsKeptUntilTheJobIsAdopted) {
  LoseStateOf(Spec("j", 2, 4));
  ReturnAll();
  for (const int rank : {0, 1}) Say(ranks_[rank].worker, key_, rank, control::Phase::kFinished);
  EXPECT_EQ(Session("w0").Last<control::Acknowledge>(), nullptr);
  EXPECT_EQ(cluster_->ListHeld()[0].ranks[0].waiting_for, "finished");
  ASSERT_TRUE(Adopt("j").ok());
  // The workers say it again.
  for (const int rank : {0, 1}) Say(ranks_[rank].worker, key_, rank, control::Phase::kFinished);
  EXPECT_EQ(Job("j").state, JobState::kSucceeded);
  EXPECT_NE(Session("w0").Last<control::Acknowledge>(), nullptr);
}

TEST_F(HeldTest, AGenerationThatIsKnownToBeOverIsAborted) {
  AttachWorkers(1);
  const control::JobKey key = RunJob("j", 1, 100);
  Say("w0", key, 0, control::Phase::kFailed, "boom");
  Attach("w1", "a", Hold{key, Rank(0)});
  EXPECT_NE(Session("w1").Last<control::Abort>(), nullptr);
  ASSERT_TRUE(Delete("j").ok());
  Attach("w2", "a", Hold{key, Rank(0)});
  EXPECT_NE(Session("w2").Last<control::Abort>(), nullptr);
  // An older copy of the state may be behind the workers.
  Attach("w3", "a", Hold{{"j", Generation(2)}, Rank(0)});
  EXPECT_EQ(Session("w3").Last<control::Abort>(), nullptr);
  EXPECT_TRUE(cluster_->IsHeld("w3"));
}

TEST_F(HeldTest, ARankThatAnotherClusterHasIsLostAndNotAborted) {
  AttachWorkers(2);
  key_ = RunJob(SavingSpec("j", 2, 100));
  ranks_ = Job("j").ranks;
  Restart();
  for (const int rank : {0, 1}) Return(rank);
  for (const char* worker : {"w0", "w1"}) {
    EXPECT_EQ(Session(worker).Last<control::Abort>(), nullptr);
    EXPECT_TRUE(cluster_->IsHeld(worker));
  }
  Advance(absl::Seconds(3));
  EXPECT_EQ(Job("j").state, JobState::kQueued);
  EXPECT_THAT(Job("j").reason, HasSubstr("workers hold it in a generation that this state does"));
}

TEST_F(HeldTest, AWorkerThatRefusesThisCoordinatorSaysSoAndGetsNoWork) {
  const FakeWorker& worker = Attach("w0");
  cluster_->Refused(worker.id, {.cause = control::RefusalCause::kLaterEpoch, .reason = "epoch 9"},
                    Moment::Of(clock_));
  Settle();
  EXPECT_EQ(cluster_->workers().at("w0").refuses, "epoch 9");
  ASSERT_TRUE(Session("w0").closed.has_value());
  EXPECT_EQ(Session("w0").closed->code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(Submit(Spec("j", 1)).ok());
  EXPECT_EQ(Job("j").state, JobState::kQueued);
  Attach("w0");
  EXPECT_EQ(cluster_->workers().at("w0").refuses, "");
  EXPECT_EQ(Job("j").state, JobState::kStarting);
}

TEST_F(HeldTest, NothingBeginsUntilTheWorkersThatHeldRanksAreBack) {
  AttachWorkers(1);
  const control::JobKey key = RunJob("j", 1, 100);
  Restart();
  Attach("w1");
  ASSERT_TRUE(Submit(Spec("k", 1)).ok());
  EXPECT_EQ(Job("k").state, JobState::kQueued);
  EXPECT_THAT(Job("k").reason, HasSubstr("waiting for 1 worker that held ranks"));
  Attach("w0", "a", Hold{key, Rank(0)});
  EXPECT_EQ(Job("k").state, JobState::kStarting);
}

TEST_F(HeldTest, NothingWaitsLongerThanTheGraceForWorkersThatHeldRanks) {
  AttachWorkers(1);
  RunJob("j", 1, 100);
  Restart();
  Attach("w1");
  ASSERT_TRUE(Submit(Spec("k", 1)).ok());
  AdvanceHearing({"w1"}, timeouts::kReturnGrace - absl::Seconds(1));
  EXPECT_EQ(Job("k").state, JobState::kQueued);
  AdvanceHearing({"w1"}, absl::Seconds(1));
  EXPECT_EQ(Job("k").state, JobState::kStarting);
}

}  // namespace
}  // namespace takt::job
