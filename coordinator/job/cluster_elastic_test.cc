// SPDX-License-Identifier: Apache-2.0
// Tests jobs whose number of workers changes while they live.
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/job/cluster_harness.h"
#include "gmock/gmock.h"

namespace takt::job {
namespace {

using membership::WorkerState;
using store::JobState;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class ElasticTest : public ClusterTest {
 protected:
  ElasticTest() {
    replan_ = {.interval = absl::Hours(1), .least_steps = 5, .grow_after = absl::Seconds(10)};
    Restart();
  }

  // A job of two to four ranks that begins with so many; 0: as many as there are.
  static config::JobSpec ElasticSpec(const std::string& name, int pipeline) {
    config::JobSpec spec = SavingSpec(name, pipeline, 1000);
    spec.elastic.pipeline = config::SizeRange{.min = 2, .max = 4};
    return spec;
  }
  // Time passes, in which all workers are heard.
  void Wait(absl::Duration time) {
    std::vector<std::string> names;
    for (const auto& [name, worker] : workers_) names.push_back(name);
    AdvanceHearing(names, time);
  }
  // Loses a worker and lets the other ranks go.
  void LoseRank(const control::JobKey& key, const std::string& worker) {
    const std::vector<control::BoundRank> ranks = Job(key.job).ranks;
    Lose(worker);
    workers_.erase(worker);
    for (const control::BoundRank& bound : ranks) {
      if (bound.worker != worker)
        Say(bound.worker, key, bound.rank.value(), control::Phase::kAborted);
    }
  }
  // Answers the planner's question with a plan of so many ranks, for a step of 0.8 s instead of
  // 1 s.
  void Offer(int pipeline, double seconds = 0.8) {
    ASSERT_THAT(replans_, SizeIs(1));
    const Replan asked = replans_[0];
    replans_.clear();
    ReplanOffer offer{.present_seconds = 1};
    offer.plan.mesh.pp_size = pipeline;
    offer.plan.schedule.name = "1f1b";
    offer.plan.programs.resize(pipeline);
    offer.plan.predicted_step_seconds = seconds;
    cluster_->Replanned(asked.job_id, asked.generation, std::move(offer), Moment::Of(clock_));
    Settle();
  }
  // Starts a job on two workers, and a third one joins that is idle for long enough.
  control::JobKey TrainBesideAnIdleWorker() {
    AttachWorkers(2);
    const control::JobKey key = RunJob(ElasticSpec("j", 0));
    TrainTo(key, 8);
    Attach("w2");
    Wait(absl::Seconds(11));
    return key;
  }
  // Plans the job that was submitted with a plan of two ranks that predicts times, and starts it.
  control::JobKey RunPredicted(const std::string& name) {
    EXPECT_THAT(plans_, SizeIs(1));
    const MakePlan asked = plans_.at(0);
    plans_.clear();
    plan::Plan plan{.mesh = {.pp_size = 2}};
    plan.partition = {{StageId(0), PpRank(0), LayerId(0), LayerId(4)},
                      {StageId(1), PpRank(1), LayerId(4), LayerId(8)}};
    plan.schedule.name = "1f1b";
    plan.schedule.num_microbatches = 8;
    plan.programs.resize(2);
    cluster_->Planned(asked.job_id, asked.generation, std::move(plan), Moment::Of(clock_));
    Settle();
    return AdmitAll(name);
  }
  // All ranks do twenty steps after `last`. In each, rank 1 computes for `busy` seconds, and rank 0
  // for 0.4 s.
  void TrainTwenty(const control::JobKey& key, std::int64_t last, double busy) {
    const std::vector<control::BoundRank> ranks = Job(key.job).ranks;
    for (std::int64_t step = last + 1; step <= last + 20; ++step) {
      for (const control::BoundRank& bound : ranks) {
        const FakeWorker& from = workers_.at(bound.worker);
        cluster_->Report(from.name, from.incarnation,
                         {.key = key,
                          .rank = bound.rank,
                          .sequence = step,
                          .step = StepId(step),
                          .step_seconds = 1,
                          .busy_seconds = bound.rank == Rank(0) ? 0.4 : busy},
                         from.session);
      }
      Advance(absl::Milliseconds(50));
    }
  }
  bool WasHalted(const std::string& worker) {
    return Session(worker).Last<control::Halt>() != nullptr;
  }
};

TEST_F(ElasticTest, AJobBeginsWithTheSizeThatItNames) {
  AttachWorkers(3);
  ASSERT_TRUE(Submit(ElasticSpec("j", 4)).ok());
  EXPECT_EQ(Job("j").reason, "needs 4 workers, 3 idle: no other is attached");
  Attach("w3");
  EXPECT_THAT(Job("j").ranks, SizeIs(4));
}

TEST_F(ElasticTest, AJobThatNamesNoSizeBeginsWithinItsRange) {
  AttachWorkers(1);
  ASSERT_TRUE(Submit(ElasticSpec("j", 0)).ok());
  EXPECT_THAT(Job("j").reason, HasSubstr("needs 2 workers"));
  for (const char* worker : {"a", "b", "c", "d"}) Attach(worker);
  EXPECT_THAT(Job("j").ranks, SizeIs(2)) << "it did not wait for more";
}

TEST_F(ElasticTest, AJobShrinksWhenNoSpareTakesALostRank) {
  AttachWorkers(4);
  control::JobKey key = RunJob(ElasticSpec("j", 4));
  TrainTo(key, 10);
  SaveAt(key, 10);
  LoseRank(key, "w3");
  EXPECT_EQ(Job("j").state, JobState::kStarting);
  EXPECT_THAT(Job("j").ranks, SizeIs(3));
  EXPECT_EQ(Job("j").transitions.back().reason, "preparing 3 ranks instead of 4");
  key = AdmitAll("j", 10);
  TrainTo(key, 12);
  LoseRank(key, "w2");
  EXPECT_THAT(Job("j").ranks, SizeIs(2));
  key = AdmitAll("j", 10);
  TrainTo(key, 13);
  // It does not go below its range.
  LoseRank(key, "w1");
  Wait(absl::Minutes(1));
  EXPECT_EQ(Job("j").state, JobState::kQueued);
  EXPECT_THAT(Job("j").reason, HasSubstr("needs 2 workers"));
}

TEST_F(ElasticTest, AJobShrinksByReplicasToANumberThatDividesItsBatch) {
  AttachWorkers(8);
  config::JobSpec spec = SavingSpec("j", 2, 1000);  // eight microbatches
  spec.parallelism.data = 4;
  spec.elastic.data = config::SizeRange{.min = 1, .max = 4};
  const control::JobKey key = RunJob(spec);
  TrainTo(key, 10);
  SaveAt(key, 10);
  hold_plans_ = true;
  LoseRank(key, "w7");
  ASSERT_THAT(plans_, SizeIs(1));
  EXPECT_EQ(plans_[0].options.max_workers, 7);
  EXPECT_EQ(plans_[0].spec.parallelism.pipeline, 2);
  EXPECT_EQ(plans_[0].spec.parallelism.data, std::nullopt);
  EXPECT_EQ(plans_[0].spec.global_batch, 8);
  // The planner takes two replicas, since three divide no batch of eight. Three workers are free.
  hold_plans_ = false;
  plan::Plan plan{.mesh = {.pp_size = 2, .dp_size = 2}};
  plan.schedule.name = "1f1b";
  plan.programs.resize(2);
  const MakePlan asked = plans_[0];
  plans_.clear();
  cluster_->Planned(asked.job_id, asked.generation, std::move(plan), Moment::Of(clock_));
  Settle();
  EXPECT_THAT(Job("j").ranks, SizeIs(4));
  EXPECT_EQ(Job("j").transitions.back().reason, "preparing 4 ranks instead of 8");
  EXPECT_EQ(StateOf("w6"), WorkerState::kIdle);
}

TEST_F(ElasticTest, ASpareTakesALostRankFirst) {
  AttachWorkers(5);
  const control::JobKey key = RunJob(ElasticSpec("j", 4));
  LoseRank(key, "w1");
  EXPECT_THAT(Job("j").ranks, SizeIs(4));
}

TEST_F(ElasticTest, AJobGrowsAtAStepBoundary) {
  const control::JobKey key = TrainBesideAnIdleWorker();
  ASSERT_THAT(replans_, SizeIs(1));
  EXPECT_EQ(replans_[0].options.max_workers, 3);
  EXPECT_EQ(replans_[0].spec.parallelism.pipeline, std::nullopt);
  EXPECT_EQ(replans_[0].spec.parallelism.data, 1);
  Offer(3);
  EXPECT_TRUE(WasHalted("w0") && WasHalted("w1"));
  EXPECT_THAT(Job("j").reason, HasSubstr("grows from 2 to 3 workers: predicted 800ms a step"));
  EXPECT_EQ(StateOf("w2"), WorkerState::kBusy) << "it is held for the job";
  TrainTo(key, 9);
  SaveAt(key, 9);
  SayAll(key, control::Phase::kHalted);
  EXPECT_EQ(Job("j").state, JobState::kStarting);
  EXPECT_THAT(Job("j").ranks, SizeIs(3));
  EXPECT_EQ(Job("j").transitions.back().reason, "preparing 3 ranks instead of 2");
  const control::JobKey next = AdmitAll("j", 9);
  EXPECT_EQ(next.generation, Generation(2));
  TrainTo(next, 11);
  EXPECT_THAT(StoredSteps("j"), ElementsAre(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11));
  EXPECT_THAT(Job("j").faults, IsEmpty());
}

TEST_F(ElasticTest, AJobGrowsOnlyWhenAWorkerWasIdleForAWhile) {
  AttachWorkers(2);
  const control::JobKey key = RunJob(ElasticSpec("j", 0));
  TrainTo(key, 8);
  for (const char* flapping : {"a", "b", "c"}) {
    Attach(flapping);
    Wait(absl::Seconds(9));
    EXPECT_THAT(replans_, IsEmpty());
    Lose(flapping);
    workers_.erase(flapping);
  }
  Attach("w2");
  Wait(absl::Seconds(11));
  EXPECT_THAT(replans_, SizeIs(1));
}

TEST_F(ElasticTest, AJobThatIsPredictedToGainLittleKeepsItsSize) {
  TrainBesideAnIdleWorker();
  Offer(3, /*seconds=*/0.95);
  Wait(absl::Minutes(1));
  EXPECT_FALSE(WasHalted("w0"));
  EXPECT_THAT(replans_, IsEmpty()) << "it was asked with these workers already";
  Attach("w3");
  Wait(absl::Seconds(11));
  ASSERT_THAT(replans_, SizeIs(1));
  EXPECT_EQ(replans_[0].options.max_workers, 4);
}

TEST_F(ElasticTest, AJobDoesNotGrowBeyondItsRange) {
  AttachWorkers(4);
  const control::JobKey key = RunJob(ElasticSpec("j", 4));
  TrainTo(key, 8);
  Attach("w4");
  Wait(absl::Minutes(1));
  EXPECT_THAT(replans_, IsEmpty());
}

TEST_F(ElasticTest, AJobThatWaitsComesBeforeGrowth) {
  AttachWorkers(2);
  const control::JobKey key = RunJob(ElasticSpec("j", 0));
  TrainTo(key, 8);
  ASSERT_TRUE(Submit(Spec("waiting", 3)).ok());
  Attach("w2");
  Wait(absl::Minutes(1));
  EXPECT_THAT(replans_, IsEmpty()) << "the worker is reserved";
  EXPECT_EQ(Job("waiting").state, JobState::kQueued);
}

TEST_F(ElasticTest, AJobThatComesBeforeTheOfferTakesTheWorker) {
  TrainBesideAnIdleWorker();
  ASSERT_TRUE(Submit(Spec("other", 1)).ok());
  EXPECT_EQ(StateOf("w2"), WorkerState::kBusy);
  Offer(3);
  EXPECT_FALSE(WasHalted("w0"));
}

TEST_F(ElasticTest, APauseWhileItHaltsToGrowFreesTheNewWorker) {
  const control::JobKey key = TrainBesideAnIdleWorker();
  Offer(3);
  ASSERT_TRUE(Pause("j").ok());
  EXPECT_EQ(StateOf("w2"), WorkerState::kIdle);
  SayAll(key, control::Phase::kHalted);
  EXPECT_EQ(Job("j").state, JobState::kPaused);
  EXPECT_EQ(StateOf("w0"), WorkerState::kIdle);
}

TEST_F(ElasticTest, AFaultWhileItHaltsToGrowFreesTheNewWorker) {
  const control::JobKey key = TrainBesideAnIdleWorker();
  Offer(3);
  LoseRank(key, "w1");
  EXPECT_EQ(Job("j").state, JobState::kStarting);
  EXPECT_THAT(Job("j").ranks, SizeIs(2)) << "it takes the rank that was lost";
}

TEST_F(ElasticTest, TheNewWorkerMayDieWhileTheJobHalts) {
  const control::JobKey key = TrainBesideAnIdleWorker();
  Offer(3);
  Lose("w2");
  workers_.erase("w2");
  SayAll(key, control::Phase::kHalted);
  EXPECT_EQ(Job("j").state, JobState::kStarting);
  EXPECT_THAT(Job("j").ranks, SizeIs(2));
}

TEST_F(ElasticTest, AJobGrowsAfterARestartOfTheCoordinator) {
  AttachWorkers(2);
  const control::JobKey key = RunJob(ElasticSpec("j", 0));
  TrainTo(key, 8);
  Restart();
  Attach("w0", "a", membership::Hold{{"j", key.generation}, Rank(0)});
  Attach("w1", "a", membership::Hold{{"j", key.generation}, Rank(1)});
  Attach("w2");
  Wait(absl::Seconds(30));
  ASSERT_THAT(replans_, SizeIs(1));
  EXPECT_EQ(replans_[0].present, nullptr);
  Offer(3);
  EXPECT_TRUE(WasHalted("w0"));
}

TEST_F(ElasticTest, AJobGrowsInMemoryWithoutACheckpoint) {
  for (const bool files : {true, false}) {
    const std::string name = files ? "files" : "memory";
    for (int i = 0; i < 2; ++i) Attach(name + std::to_string(i));
    config::JobSpec spec = CopyingSpec(ElasticSpec(name, 0));
    if (!files) spec.checkpoint.reset();
    const control::JobKey key = RunJob(spec);
    TrainTo(key, 8);
    Attach(name + "2");
    Wait(absl::Seconds(11));
    Offer(3);
    ASSERT_TRUE(WasHalted(name + "0"));
    EXPECT_TRUE(Session(name + "0").Last<control::Halt>()->in_memory);
    TrainTo(key, 9);
    EXPECT_EQ(Job(name).saving.open.size(), 0u);
    SayAll(key, control::Phase::kHalted);
    ASSERT_EQ(Job(name).state, JobState::kStarting);
    EXPECT_THAT(Job(name).ranks, SizeIs(3));
    EXPECT_TRUE(Session(name + "0").Last<control::Acknowledge>()->keeps_copies);
    const control::MemoryCopies copies =
        Session(name + "2").Last<control::Prepare>()->assignment()->copies;
    EXPECT_EQ(copies.at_most, StepId(9));
    EXPECT_EQ(copies.required, !files);
    ASSERT_TRUE(Cancel(name).ok());
    SayAll({name, Generation(2)}, control::Phase::kAborted);
    for (int i = 0; i < 3; ++i) {
      const std::string worker = name + std::to_string(i);
      Lose(worker);
      workers_.erase(worker);
    }
  }
}

TEST_F(ElasticTest, APauseOfAJobThatEndsInMemoryAsksItToSave) {
  AttachWorkers(2);
  const control::JobKey key = RunJob(CopyingSpec(ElasticSpec("j", 0)));
  TrainTo(key, 8);
  Attach("w2");
  Wait(absl::Seconds(11));
  Offer(3);
  ASSERT_TRUE(Session("w0").Last<control::Halt>()->in_memory);
  ASSERT_TRUE(Pause("j").ok());
  EXPECT_FALSE(Session("w0").Last<control::Halt>()->in_memory);
}

TEST_F(ElasticTest, AJobThatShrinksToOneRankGoesOnFromTheCopiesOfTheLastGeneration) {
  AttachWorkers(2);
  config::JobSpec spec = CopyingSpec(ElasticSpec("j", 0));
  spec.elastic.pipeline->min = 1;
  const control::JobKey key = RunJob(spec);
  TrainTo(key, 8);
  LoseRank(key, "w1");
  ASSERT_EQ(Job("j").state, JobState::kStarting);
  const control::MemoryCopies copies = Session("w0").Last<control::Prepare>()->assignment()->copies;
  EXPECT_EQ(copies.every_steps, 0) << "no other rank keeps them";
  EXPECT_EQ(copies.at_most, StepId(8));
}

TEST_F(ElasticTest, AStragglerIsNamedAndEvictedWhereThereIsASpare) {
  AttachWorkers(2);
  config::JobSpec spec = SavingSpec("j", 2, 1000);
  spec.elastic.evict_stragglers = true;
  hold_plans_ = true;
  ASSERT_TRUE(Submit(spec).ok());
  control::JobKey key = RunPredicted("j");
  TrainTwenty(key, 0, 0.8);
  constexpr char kSlow[] =
      "computes 2.0 times as long as predicted, beside the other ranks, since step 1";
  EXPECT_EQ(Job("j").reason, std::string("training; rank 1 (w1) ") + kSlow);
  EXPECT_EQ(Job("j").straggler, 2);
  Wait(absl::Minutes(1));
  EXPECT_FALSE(WasHalted("w0")) << "there is no spare";
  Attach("w2");
  Wait(absl::Seconds(11));
  ASSERT_TRUE(WasHalted("w0"));
  EXPECT_EQ(Session("w0").Last<control::Halt>()->reason,
            std::string("worker w1 (rank 1) is evicted: it ") + kSlow);
  SayAll(key, control::Phase::kHalted);
  EXPECT_EQ(Job("j").straggler, 0);
  key = RunPredicted("j");
  EXPECT_EQ(Job("j").ranks[1].worker, "w2");
  EXPECT_EQ(StateOf("w1"), WorkerState::kIdle);
  EXPECT_THAT(cluster_->workers().at("w1").blame.score, ::testing::Gt(0));
  EXPECT_THAT(Job("j").faults, IsEmpty());

  // The next worker is as slow, so the plan is wrong about the stage.
  Attach("w3");
  TrainTwenty(key, 20, 0.8);
  EXPECT_THAT(Job("j").reason, HasSubstr("rank 1 (w2) computes 2.0 times"));
  Wait(absl::Minutes(1));
  EXPECT_FALSE(WasHalted("w2"));
}

TEST_F(ElasticTest, AJobThatDoesNotAskForItKeepsItsStraggler) {
  AttachWorkers(3);
  hold_plans_ = true;
  ASSERT_TRUE(Submit(SavingSpec("j", 2, 1000)).ok());
  const control::JobKey key = RunPredicted("j");
  TrainTwenty(key, 0, 0.8);
  EXPECT_THAT(Job("j").reason, HasSubstr("training; rank 1 (w1) computes 2.0 times"));
  Wait(absl::Minutes(1));
  EXPECT_FALSE(WasHalted("w0"));
  TrainTwenty(key, 20, 0.4);
  EXPECT_EQ(Job("j").reason, "training");
}

TEST_F(ElasticTest, AnElasticJobThatEvictsDoesNotTakeTheStragglerBack) {
  AttachWorkers(2);
  config::JobSpec spec = ElasticSpec("j", 2);
  spec.elastic.evict_stragglers = true;
  hold_plans_ = true;
  ASSERT_TRUE(Submit(spec).ok());
  const control::JobKey key = RunPredicted("j");
  TrainTwenty(key, 0, 0.8);
  Attach("w2");
  Wait(absl::Seconds(11));
  ASSERT_TRUE(WasHalted("w0"));
  SayAll(key, control::Phase::kHalted);
  ASSERT_THAT(plans_, SizeIs(1));
  EXPECT_EQ(plans_[0].options.max_workers, 2) << "w0 and w2";
  EXPECT_EQ(StateOf("w1"), WorkerState::kIdle);
}

TEST_F(ElasticTest, AJobWithoutARangeDoesNotGrow) {
  AttachWorkers(2);
  const control::JobKey key = RunJob(SavingSpec("j", 0, 1000));
  TrainTo(key, 8);
  Attach("w2");
  Wait(absl::Minutes(1));
  EXPECT_THAT(replans_, IsEmpty());
}

}  // namespace
}  // namespace takt::job
