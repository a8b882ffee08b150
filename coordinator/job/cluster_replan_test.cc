// SPDX-License-Identifier: Apache-2.0
// Tests that a job that trains is planned again by what was measured since, and goes on with the
// plan that it gets. replan_test.cc has the rules.
#include "absl/strings/str_cat.h"
#include "coordinator/job/cluster_harness.h"
#include "gmock/gmock.h"

namespace takt::job {
namespace {

using membership::Hold;
using membership::WorkerState;
using store::JobState;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

constexpr char kReplanned[] = "replanned: predicted 812ms a step instead of 1.003s";

std::vector<JobState> StatesOf(const store::JobRecord& job) {
  std::vector<JobState> states;
  for (const store::Transition& transition : job.transitions) states.push_back(transition.state);
  return states;
}

class ReplanTest : public ClusterTest {
 protected:
  ReplanTest() {
    replan_ = {.interval = absl::Seconds(1), .least_steps = 5};
    Restart();
  }

  // Starts a job on two workers that trains to step 8. pipeline: 0: auto.
  control::JobKey Train(config::Replan replan, int pipeline = 2) {
    AttachWorkers(2);
    config::JobSpec spec = SavingSpec("j", pipeline, 1000);
    spec.replan = replan;
    const control::JobKey key = RunJob(spec);
    TrainTo(key, 8);
    return key;
  }

  // Measures something, and lets the time pass after which the job is planned again.
  void Measure(const control::JobKey& key) {
    profile_ = std::make_shared<const profile::Profile>();
    const std::vector<control::BoundRank> ranks = Job(key.job).ranks;
    for (const control::BoundRank& bound : ranks)
      Heartbeat(bound.worker, key, bound.rank.value(), 8, "0F0");
    Advance(replan_.interval);
  }

  // Returns the oldest question that was not answered yet.
  Replan TakeQuestion() {
    EXPECT_THAT(replans_, Not(IsEmpty()));
    Replan asked = replans_.front();
    replans_.erase(replans_.begin());
    return asked;
  }
  // Returns an offer of a plan of so many ranks whose step is 812 ms instead of 1003 ms.
  static ReplanOffer BetterPlan(int pipeline = 2) {
    ReplanOffer offer{.present_seconds = 1.003};
    offer.plan.mesh.pp_size = pipeline;
    offer.plan.schedule.name = "better";
    offer.plan.programs.resize(pipeline);
    offer.plan.predicted_step_seconds = 0.812;
    return offer;
  }
  void Answer(const Replan& asked, absl::StatusOr<ReplanOffer> offer) {
    cluster_->Replanned(asked.job_id, asked.generation, std::move(offer), Moment::Of(clock_));
    Settle();
  }
  using ClusterTest::Answer;

  // Starts a job that halts after the checkpoint of step 10, because it gets a better plan.
  control::JobKey SwitchingJob(int pipeline = 2) {
    const control::JobKey key = Train(config::Replan::kAtCheckpoint, pipeline);
    Measure(key);
    Answer(TakeQuestion(), BetterPlan(pipeline == 0 ? 1 : 2));
    TrainTo(key, 10);
    EXPECT_EQ(Session("w0").Last<control::Halt>(), nullptr);
    SaveAt(key, 10);
    return key;
  }
  // Lets all ranks halt after step 12, which they save.
  void HaltAt12(const control::JobKey& key) {
    TrainTo(key, 12);
    SaveAt(key, 12);
    SayAll(key, control::Phase::kHalted);
  }
};

TEST_F(ReplanTest, AJobIsPlannedAgainForTheWorkersThatItHas) {
  Attach("w9");
  const control::JobKey key = Train(config::Replan::kNever);
  EXPECT_THAT(replans_, IsEmpty()) << "nothing was measured";
  Measure(key);
  ASSERT_THAT(replans_, SizeIs(1));
  const Replan& asked = replans_[0];
  EXPECT_EQ(asked.options.max_workers, 2);
  EXPECT_EQ(asked.options.profile, profile_);
  EXPECT_EQ(asked.spec.parallelism.data, 1);
  ASSERT_NE(asked.present, nullptr);
  EXPECT_EQ(asked.present->schedule.name, "1f1b");
  Measure(key);
  EXPECT_THAT(replans_, SizeIs(1)) << "one question at a time";
  Answer(TakeQuestion(), BetterPlan());
  Advance(replan_.interval);
  EXPECT_THAT(replans_, SizeIs(1)) << "of what was measured meanwhile";
  Answer(TakeQuestion(), BetterPlan());
  Advance(replan_.interval);
  EXPECT_THAT(replans_, IsEmpty()) << "not twice with the same profile";
  Measure(key);
  EXPECT_THAT(replans_, SizeIs(1));
}

TEST_F(ReplanTest, ThePlannerHearsHowOftenStepsWereClipped) {
  const control::JobKey key = Train(config::Replan::kNever);
  Measure(key);
  const Replan asked = TakeQuestion();
  EXPECT_EQ(asked.options.clipped_share, std::nullopt) << "eight steps are too few";
  Answer(asked, BetterPlan());
  TrainTo(key, 60);
  Measure(key);
  EXPECT_EQ(TakeQuestion().options.clipped_share, 0);
}

TEST_F(ReplanTest, ThePlannerHearsHowUnevenlyExpertsAreUsed) {
  AttachWorkers(2);
  config::JobSpec spec = SavingSpec("j", 1, 1000);
  spec.parallelism.data = spec.parallelism.expert = 2;
  const control::JobKey key = RunJob(spec);
  const std::vector<control::BoundRank> ranks = Job("j").ranks;
  // Of two ranks neither has less than its share, nor more than all. What says so is not believed.
  const std::vector<double> reported = {1.25, 3, 1.25, 0.5, 1.25, 1.25, 2, 1.25};
  for (std::int64_t step = 1; step <= std::ssize(reported); ++step) {
    for (const control::BoundRank& bound : ranks) {
      cluster_->Report(bound.worker, "a",
                       {.key = key,
                        .rank = bound.rank,
                        .sequence = step,
                        .step = StepId(step),
                        .step_seconds = 1,
                        .loss = 1,
                        .tokens = 64,
                        .expert_imbalance = reported[step - 1]},
                       workers_.at(bound.worker).session);
    }
    Advance(absl::Milliseconds(50));
  }
  Measure(key);
  const double known = TakeQuestion().options.expert_imbalance;
  EXPECT_GT(known, 1.25);
  EXPECT_LT(known, 1.30) << "a single step is little news";
}

TEST_F(ReplanTest, TheGainIsShownAndAJobThatDoesNotAskForItKeepsItsPlan) {
  const control::JobKey key = Train(config::Replan::kNever);
  EXPECT_EQ(Job("j").replan_gain, 0);
  Measure(key);
  Answer(TakeQuestion(), BetterPlan());
  EXPECT_NEAR(Job("j").replan_gain, 0.19, 0.001);
  TrainTo(key, 10);
  SaveAt(key, 10);
  EXPECT_EQ(Session("w0").Last<control::Halt>(), nullptr);
  EXPECT_EQ(Job("j").reason, "training");
  ASSERT_TRUE(Pause("j").ok());
  SayAll(key, control::Phase::kHalted);
  EXPECT_EQ(Job("j").replan_gain, 0) << "it has no plan";
}

TEST_F(ReplanTest, AJobGoesOnWithABetterPlanAfterItsCheckpoint) {
  const control::JobKey key = SwitchingJob();
  for (const char* worker : {"w0", "w1"}) {
    ASSERT_NE(Session(worker).Last<control::Halt>(), nullptr);
    EXPECT_EQ(Session(worker).Last<control::Halt>()->reason, kReplanned);
  }
  EXPECT_THAT(Job("j").reason, HasSubstr(kReplanned));
  EXPECT_EQ(Job("j").generation, Generation(1));
  HaltAt12(key);
  EXPECT_EQ(Job("j").state, JobState::kStarting);
  EXPECT_EQ(Job("j").generation, Generation(2));
  EXPECT_EQ(Job("j").plan.schedule, "better");
  EXPECT_EQ(Job("j").plan.predicted_step_seconds, 0.812);
  EXPECT_THAT(plans_, IsEmpty());
  EXPECT_THAT(StatesOf(Job("j")),
              ElementsAre(JobState::kQueued, JobState::kPlanning, JobState::kStarting,
                          JobState::kRunning, JobState::kPlanning, JobState::kStarting));
  EXPECT_EQ(Job("j").transitions[4].reason,
            absl::StrCat(kReplanned, "; goes on from the checkpoint of step 12"));
  const control::Prepare* prepare = Session("w1").Last<control::Prepare>();
  ASSERT_NE(prepare, nullptr);
  EXPECT_EQ(prepare->assignment()->key.generation, Generation(2));
  EXPECT_EQ(prepare->assignment()->resume, "auto");

  const control::JobKey next = AdmitAll("j", 12);
  TrainTo(next, 14);
  EXPECT_THAT(StoredSteps("j"), ElementsAre(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14));
  EXPECT_THAT(Job("j").faults, IsEmpty());
  EXPECT_THAT(Job("j").fault, IsEmpty());
  EXPECT_EQ(Job("j").replan_gain, 0);
}

TEST_F(ReplanTest, AnOfferWaitsForACheckpointThatIsLaterThanItself) {
  const control::JobKey key = Train(config::Replan::kAtCheckpoint);
  TrainTo(key, 10);
  SaveAt(key, 10);
  Measure(key);
  Answer(TakeQuestion(), BetterPlan());
  EXPECT_EQ(Session("w0").Last<control::Halt>(), nullptr);
  TrainTo(key, 20);
  SaveAt(key, 20);
  EXPECT_NE(Session("w0").Last<control::Halt>(), nullptr);
}

TEST_F(ReplanTest, APlannerThatFailsLeavesTheJobAlone) {
  const control::JobKey key = Train(config::Replan::kAtCheckpoint);
  Measure(key);
  Answer(TakeQuestion(), BetterPlan());
  Measure(key);
  Answer(TakeQuestion(), absl::ResourceExhaustedError("out of memory"));
  EXPECT_EQ(Job("j").replan_gain, 0);
  TrainTo(key, 10);
  SaveAt(key, 10);
  EXPECT_EQ(Session("w0").Last<control::Halt>(), nullptr);
  EXPECT_EQ(Job("j").reason, "training");
  EXPECT_THAT(Job("j").notices, IsEmpty());
  Measure(key);
  EXPECT_THAT(replans_, SizeIs(1)) << "it may succeed later";
}

TEST_F(ReplanTest, AnAnswerThatComesTooLateIsDropped) {
  const control::JobKey key = Train(config::Replan::kAtCheckpoint);
  Measure(key);
  const Replan asked = TakeQuestion();
  ASSERT_TRUE(Pause("j").ok());
  SayAll(key, control::Phase::kHalted);
  Answer(asked, BetterPlan());
  EXPECT_EQ(Job("j").state, JobState::kPaused);
  ASSERT_TRUE(Resume("j").ok());
  AdmitAll("j");
  Answer(asked, BetterPlan());
  EXPECT_EQ(Job("j").replan_gain, 0);
}

TEST_F(ReplanTest, WorkersThatASmallerPlanDoesNotNeedAreFree) {
  const control::JobKey key = SwitchingJob(/*pipeline=*/0);
  HaltAt12(key);
  EXPECT_EQ(Job("j").state, JobState::kStarting);
  ASSERT_THAT(Job("j").ranks, SizeIs(1));
  EXPECT_EQ(Job("j").ranks[0].worker, "w0");
  EXPECT_EQ(StateOf("w1"), WorkerState::kIdle);
}

TEST_F(ReplanTest, AJobOfAHigherPriorityGetsItsWorkersOnlyByAPause) {
  const control::JobKey key = SwitchingJob();
  config::JobSpec urgent = Spec("urgent", 2);
  urgent.priority = 60;
  ASSERT_TRUE(Submit(urgent).ok());
  EXPECT_THAT(Job("urgent").reason, HasSubstr("2 held by job j;"));
  HaltAt12(key);
  EXPECT_EQ(Job("j").state, JobState::kStarting);
  EXPECT_EQ(Job("urgent").state, JobState::kQueued);
  const control::JobKey next = AdmitAll("j", 12);
  TrainTo(next, 13);
  EXPECT_EQ(Session("w0").Last<control::Halt>()->reason,
            "paused for job urgent, whose priority is 60");
}

TEST_F(ReplanTest, APauseWhileItHaltsPausesIt) {
  const control::JobKey key = SwitchingJob();
  ASSERT_TRUE(Pause("j").ok());
  HaltAt12(key);
  EXPECT_EQ(Job("j").state, JobState::kPaused);
  EXPECT_EQ(StateOf("w0"), WorkerState::kIdle);
}

TEST_F(ReplanTest, AWorkerThatIsDrainedWhileItHaltsIsReplaced) {
  const control::JobKey key = SwitchingJob();
  Attach("w2");
  ASSERT_TRUE(SetDrained("w1", true).ok());
  EXPECT_THAT(Job("j").reason, HasSubstr("worker w1 is drained"));
  HaltAt12(key);
  EXPECT_EQ(Job("j").state, JobState::kStarting);
  EXPECT_EQ(Job("j").ranks[1].worker, "w2");
  EXPECT_EQ(Job("j").plan.schedule, "1f1b") << "it was planned anew";
}

TEST_F(ReplanTest, AWorkerThatDiesWhileItHaltsIsAFaultAsAnyOther) {
  const control::JobKey key = SwitchingJob();
  Attach("w2");
  Lose("w1");
  Say("w0", key, 0, control::Phase::kAborted);
  EXPECT_EQ(Job("j").state, JobState::kStarting);
  EXPECT_THAT(StatesOf(Job("j")), Contains(JobState::kRecovering));
  EXPECT_EQ(Job("j").ranks[1].worker, "w2");
  EXPECT_EQ(Job("j").plan.schedule, "1f1b");
}

TEST_F(ReplanTest, ARestartOfTheCoordinatorWhileItHaltsPlansItAnew) {
  const control::JobKey key = SwitchingJob();
  Restart();
  Attach("w0", "a", Hold{{"j", key.generation}, Rank(0)});
  Attach("w1", "a", Hold{{"j", key.generation}, Rank(1)});
  ASSERT_NE(Session("w0").Last<control::Halt>(), nullptr);  // it may not have heard it
  HaltAt12(key);
  EXPECT_EQ(Job("j").state, JobState::kStarting);
  EXPECT_EQ(Job("j").generation, Generation(2));
  EXPECT_THAT(Job("j").transitions[4].reason, HasSubstr(kReplanned));
  EXPECT_EQ(Job("j").transitions[4].state, JobState::kQueued);
  EXPECT_THAT(Job("j").faults, IsEmpty());
}

TEST_F(ReplanTest, AGenerationThatBeganBeforeARestartKeepsItsPlan) {
  const control::JobKey key = Train(config::Replan::kAtCheckpoint);
  Measure(key);
  Answer(TakeQuestion(), BetterPlan());
  Restart();
  Attach("w0", "a", Hold{{"j", key.generation}, Rank(0)});
  Attach("w1", "a", Hold{{"j", key.generation}, Rank(1)});
  EXPECT_EQ(Job("j").replan_gain, 0);
  Measure(key);
  EXPECT_THAT(replans_, IsEmpty());
  TrainTo(key, 10);
  SaveAt(key, 10);
  EXPECT_EQ(Session("w0").Last<control::Halt>(), nullptr);
}

TEST_F(ReplanTest, AJobWhoseBitsDependOnItsPlanKeepsIt) {
  AttachWorkers(2);
  config::JobSpec spec = SavingSpec("j", 2, 1000);
  spec.exact = false;
  const control::JobKey key = RunJob(spec);
  TrainTo(key, 8);
  Measure(key);
  EXPECT_THAT(replans_, IsEmpty());
}

}  // namespace
}  // namespace takt::job
