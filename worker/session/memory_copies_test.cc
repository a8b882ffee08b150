// SPDX-License-Identifier: Apache-2.0
// The ranks of a small GPT-2 as threads of this process, over the transport that real ranks use.
// One generation is stopped in the middle, and another one goes on from the copies that are left.
#include "worker/session/memory_copies.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "common/metrics/catalog.h"
#include "common/metrics/registry.h"
#include "common/plan/plan.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/map_rendezvous.h"
#include "worker/backend/cpu/cpu_backend.h"
#include "worker/session/pipeline_runner.h"
#include "worker/session/shared_rendezvous_testing.h"
#include "worker/session/small_job_testing.h"

namespace takt::session {
namespace {

using ::testing::HasSubstr;
using worker_checkpoint::CopyStore;

constexpr std::int64_t kSteps = 120;
constexpr std::int64_t kFault = 20;  // soon after this step the first generation is stopped

struct Outcome {
  std::vector<absl::StatusOr<control::Resumed>> resumed;  // by rank
  std::map<std::int64_t, double> losses;                  // of rank 0, by step
  std::int64_t last = 0;                                  // the last step that any rank reported
};

class MemoryCopiesTest : public ::testing::Test {
 protected:
  MemoryCopiesTest() { SetRanks(2); }

  // Gives each rank a worker without copies.
  void SetRanks(int count) {
    stores_.clear();
    for (int rank = 0; rank < count; ++rank) stores_.push_back(std::make_unique<CopyStore>());
  }
  int num_ranks() const { return static_cast<int>(stores_.size()); }

  config::JobSpec Job() const {
    config::JobSpec job = small_.Spec("memory");
    job.lion = lion_;
    job.muon = muon_;
    job.steps = kSteps;
    job.copy_every_steps = every_steps_;
    job.parallelism.pipeline = pipeline_;
    job.parallelism.data = num_ranks() / (pipeline_ * tensor_ * context_);
    job.parallelism.tensor = tensor_;
    job.parallelism.context = context_;
    if (tensor_ > 1) job.model.hidden = 16;
    if (expert_ > 0) {
      job.parallelism.expert = expert_;
      job.model.family = model::Family::kMixtral;
      job.model.inner = 20;
      job.model.tied_head = false;
      job.model.mixture = model::Mixture{.experts = 4, .chosen = 2, .inner = 20};
    }
    job.parallelism.vocabulary = config::Vocabulary::kLast;
    job.parallelism.shard = shard_;
    job.precision = precision_;
    return job;
  }

  control::Assignment AssignmentOf(int rank, const plan::Plan& plan, Generation generation,
                                   StepId at_most) const {
    control::Assignment assignment;
    assignment.key = {"memory", generation};
    assignment.rank = Rank(rank);
    assignment.job = Job();
    assignment.mesh = plan.mesh;
    assignment.partition = plan.partition;
    assignment.program =
        plan.programs[static_cast<std::size_t>(plan.mesh.PpRankOf(Rank(rank)).value())];
    assignment.secret = "secret";
    assignment.job_id = "id";
    assignment.copies = {
        .every_steps = every_steps_,
        .shift = plan.mesh.num_replicas() <= std::max(expert_, 1) || shard_ != config::Shard::kNone
                     ? tensor_
                     : 0,
        .at_most = at_most,
        .required = at_most > StepId(0)};
    return assignment;
  }

  // Runs one generation, to its end or until it is stopped after kFault. halts: it is told to halt
  // in memory then, instead.
  Outcome Train(int generation, StepId at_most, bool stops, bool halts = false) {
    const plan::Plan plan = plan::MakePlan(Job(), {.max_workers = num_ranks()}).value();
    const auto map = std::make_shared<testing::MapRendezvous>();
    Outcome outcome;
    absl::Mutex mutex;
    absl::Notification fault;
    std::vector<std::unique_ptr<RankRunner>> runners(stores_.size());
    outcome.resumed.resize(stores_.size());
    for (int rank = 0; rank < num_ranks(); ++rank) {
      runners[rank] = CreatePipelineRunner(
          {.data_root = "/",
           .make_rendezvous =
               [map](const control::JobKey&) { return std::make_unique<SharedRendezvous>(map); },
           .metrics = &registry_,
           .make_backends =
               [](const control::Assignment&, int threads) {
                 return backend::CreateCpuBackends({.threads = threads});
               },
           .copies = stores_[rank].get()},
          AssignmentOf(rank, plan, Generation(generation), at_most));
    }
    const auto run = [&](int rank) {
      outcome.resumed[rank] = runners[rank]->Prepare();
      if (!outcome.resumed[rank].ok()) return;
      const auto end = runners[rank]->Run([&](const Report& report) {
        const auto& step = std::get<control::RankStepReport>(report);
        const absl::MutexLock lock(&mutex);
        if (rank == 0) outcome.losses[step.step.value()] = step.loss;
        outcome.last = std::max(outcome.last, step.step.value());
        const bool is_time = (stops || halts) && step.step == StepId(kFault);
        if (is_time && !fault.HasBeenNotified()) fault.Notify();
      });
      EXPECT_EQ(end.ok(), !stops) << end.status();
      if (end.ok()) {
        EXPECT_EQ(*end == RunEnd::kHalted, halts);
      }
    };
    std::vector<std::thread> threads;
    for (int rank = 0; rank < num_ranks(); ++rank) threads.emplace_back(run, rank);
    if (stops || halts) fault.WaitForNotification();
    for (const auto& runner : runners) {
      if (stops) runner->Stop(absl::CancelledError("worker w9 died"));
      if (halts) runner->Halt(/*in_memory=*/true);
    }
    for (std::thread& thread : threads) thread.join();
    return outcome;
  }

  // Compares the steps of a generation with those of a run that nothing disturbs.
  void ExpectUndisturbed(const Outcome& outcome) {
    SetRanks(num_ranks());
    const Outcome whole = Train(9, StepId(0), /*stops=*/false);
    ASSERT_EQ(whole.losses.size(), static_cast<std::size_t>(kSteps));
    const std::int64_t first = outcome.resumed[0]->step.value() + 1;
    EXPECT_EQ(outcome.losses.size(), static_cast<std::size_t>(kSteps - first + 1));
    for (const auto& [step, loss] : outcome.losses) EXPECT_EQ(loss, whole.losses.at(step)) << step;
  }

  // A spare takes the place of a rank, and gets its state from the others' memory.
  void ExpectRebuilt(int lost) {
    const Outcome first = Train(1, StepId(0), /*stops=*/true);
    const auto rank = static_cast<std::size_t>(lost);
    stores_[rank] = std::make_unique<CopyStore>();
    const Outcome second = Train(2, StepId(first.last), /*stops=*/false);
    ASSERT_TRUE(second.resumed[rank].ok()) << second.resumed[rank].status();
    EXPECT_TRUE(second.resumed[rank]->from_memory);
    EXPECT_GE(second.resumed[rank]->step.value(), first.last - 1);
    ExpectUndisturbed(second);
  }

  const SmallJob small_;
  int pipeline_ = 2;  // of two ranks 2: two stages; 1: two replicas
  int tensor_ = 1, context_ = 1;
  int expert_ = 0;  // ranks that share the experts of a Mixtral; 0: the model has none
  config::Shard shard_ = config::Shard::kNone;
  config::Precision precision_ = config::Precision::kF32;
  std::int64_t every_steps_ = 1;
  std::optional<config::Lion> lion_;  // neither: AdamW trains
  std::optional<config::Muon> muon_;
  std::vector<std::unique_ptr<CopyStore>> stores_;  // of the workers, by rank
  metrics::Registry registry_;
};

TEST_F(MemoryCopiesTest, ALostRankIsRebuiltFromItsNeighboursMemory) {
  const Outcome first = Train(1, StepId(0), /*stops=*/true);
  stores_[1] = std::make_unique<CopyStore>();  // a spare takes the place of rank 1
  const Outcome second = Train(2, StepId(first.last), /*stops=*/false);
  for (const auto& resumed : second.resumed) {
    ASSERT_TRUE(resumed.ok()) << resumed.status();
    EXPECT_TRUE(resumed->from_memory);
    EXPECT_EQ(resumed->step, second.resumed[0]->step);
    EXPECT_GE(resumed->step.value(), first.last - 1);
    EXPECT_LE(resumed->step.value(), first.last);
  }
  EXPECT_THAT(registry_.Text(),
              HasSubstr("takt_memory_copies_total{job=\"memory\",pp_rank=\"1\",result=\"done\"}"));
  EXPECT_THAT(
      registry_.Text(),
      HasSubstr("takt_memory_copies_total{job=\"memory\",pp_rank=\"0\",result=\"failed\"} 0"));
  ExpectUndisturbed(second);
}

TEST_F(MemoryCopiesTest, TheSeriesOfCopiesStayWithinTheirBound) {
  Train(1, StepId(0), /*stops=*/true);
  const std::vector<std::string> lines = absl::StrSplit(registry_.Text(), '\n');
  const metrics::JobShape shape{.stages = 2, .pp_ranks = 2, .dp_ranks = 1};
  for (const metrics::Metric* metric : {&metrics::kMemoryCopies, &metrics::kMemoryCopyStep}) {
    const auto series = std::ranges::count_if(lines, [&](const std::string& line) {
      return absl::StartsWith(line, absl::StrCat(std::string(metric->name), "{"));
    });
    EXPECT_GT(series, 0) << metric->name;
    EXPECT_LE(series, metrics::MostSeriesPerJob(*metric, shape)) << metric->name;
  }
}

TEST_F(MemoryCopiesTest, TheFirstRankIsRebuiltTooAndCopiesMayBeRare) {
  every_steps_ = 7;
  const Outcome first = Train(1, StepId(0), /*stops=*/true);
  stores_[0] = std::make_unique<CopyStore>();
  const Outcome second = Train(2, StepId(first.last), /*stops=*/false);
  ASSERT_TRUE(second.resumed[0].ok()) << second.resumed[0].status();
  EXPECT_EQ(second.resumed[0]->step.value() % 7, 0);
  EXPECT_GE(second.resumed[0]->step.value(), kFault - 2 * 7);
  ExpectUndisturbed(second);
}

TEST_F(MemoryCopiesTest, CopiesHaveTheMomentsThatTheOptimizerHas) {
  lion_ = config::Lion{.learning_rate = 1e-3};
  ExpectRebuilt(/*lost=*/1);
}

// Matrices have one moment, and the other parameters two.
TEST_F(MemoryCopiesTest, CopiesHaveTheMomentsOfEachParameter) {
  muon_ = config::Muon{.learning_rate = 1e-3};
  ExpectRebuilt(/*lost=*/1);
}

TEST_F(MemoryCopiesTest, AReplicaHoldsTheStateOfTheOther) {
  pipeline_ = 1;
  ExpectRebuilt(/*lost=*/1);
}

// Each of two replicas copies the layers that it would write to checkpoints, and keeps the other's.
TEST_F(MemoryCopiesTest, ReplicasThatShareTheOptimizersStateCopyHalfOfTheLayersEach) {
  pipeline_ = 1;
  shard_ = config::Shard::kOptimizer;
  const Outcome first = Train(1, StepId(0), /*stops=*/true);
  for (const auto& copy : stores_[0]->Begin("memory", "id")) EXPECT_EQ(copy->layers().size(), 2u);
  stores_[1] = std::make_unique<CopyStore>();
  const Outcome second = Train(2, StepId(first.last), /*stops=*/false);
  ASSERT_TRUE(second.resumed[1].ok()) << second.resumed[1].status();
  EXPECT_TRUE(second.resumed[1]->from_memory);
  EXPECT_GE(second.resumed[1]->step.value(), first.last - 1);
  ExpectUndisturbed(second);
}

// Copies have whole layers, so a job may share from then on, or no longer.
TEST_F(MemoryCopiesTest, AGenerationThatDoesNotShareGoesOnFromCopiesOfOneThatDoes) {
  pipeline_ = 1;
  shard_ = config::Shard::kOptimizer;
  const Outcome first = Train(1, StepId(0), /*stops=*/true);
  shard_ = config::Shard::kNone;
  const Outcome second = Train(2, StepId(first.last), /*stops=*/false);
  ASSERT_TRUE(second.resumed[0].ok()) << second.resumed[0].status();
  EXPECT_TRUE(second.resumed[0]->from_memory);
  ExpectUndisturbed(second);
}

// A rank's part of each layer goes to the rank of another stage that has the same part.
TEST_F(MemoryCopiesTest, RanksThatSplitLayersCopyTheirParts) {
  tensor_ = 2;
  SetRanks(4);
  const Outcome first = Train(1, StepId(0), /*stops=*/true);
  stores_[1] = std::make_unique<CopyStore>();
  std::swap(stores_[2], stores_[3]);  // they get other ranks
  const Outcome second = Train(2, StepId(first.last), /*stops=*/false);
  for (const auto& resumed : second.resumed) {
    ASSERT_TRUE(resumed.ok()) << resumed.status();
    EXPECT_TRUE(resumed->from_memory);
    EXPECT_GE(resumed->step.value(), first.last - 1);
  }
  ExpectUndisturbed(second);
}

TEST_F(MemoryCopiesTest, ReplicasOfRanksThatSplitLayersHoldTheirParts) {
  tensor_ = 2;
  pipeline_ = 1;
  SetRanks(4);
  for (const config::Shard shard : {config::Shard::kNone, config::Shard::kOptimizer}) {
    shard_ = shard;
    SetRanks(4);
    ExpectRebuilt(/*lost=*/2);
  }
  precision_ = config::Precision::kBf16;
  SetRanks(4);
  ExpectRebuilt(/*lost=*/2);
}

// Ranks then have shards of matrices in f32, and all of them packed.
TEST_F(MemoryCopiesTest, ReplicasThatShareTheOptimizersStateInBf16AreRebuilt) {
  precision_ = config::Precision::kBf16;
  shard_ = config::Shard::kOptimizer;
  pipeline_ = 1;
  ExpectRebuilt(/*lost=*/1);
}

TEST_F(MemoryCopiesTest, RanksThatShareSequencesAreReplicas) {
  context_ = 2;
  pipeline_ = 1;
  ExpectRebuilt(/*lost=*/1);
}

// Each keeps the experts of the other one.
TEST_F(MemoryCopiesTest, RanksThatShareExpertsCopyTheirOwn) {
  expert_ = 2;
  pipeline_ = 1;
  ExpectRebuilt(/*lost=*/1);
}

TEST_F(MemoryCopiesTest, ReplicasOfRanksThatShareExpertsHoldTheirs) {
  expert_ = 2;
  pipeline_ = 1;
  SetRanks(4);
  ExpectRebuilt(/*lost=*/1);
}

TEST_F(MemoryCopiesTest, WithoutTheHolderAJobThatSavesNoFilesSaysWhatIsMissing) {
  const Outcome first = Train(1, StepId(0), /*stops=*/true);
  SetRanks(2);
  const Outcome second = Train(2, StepId(first.last), /*stops=*/false);
  for (const auto& resumed : second.resumed) {
    EXPECT_TRUE(absl::IsInvalidArgument(resumed.status())) << resumed.status();
    EXPECT_THAT(std::string(resumed.status().message()), HasSubstr("no worker holds a copy"));
  }
}

TEST_F(MemoryCopiesTest, AFlippedBitIsFoundAndAnOlderStepTaken) {
  const Outcome first = Train(1, StepId(0), /*stops=*/true);
  stores_[1] = std::make_unique<CopyStore>();
  // Rank 0 keeps two copies of its own and two of rank 1's. The newest of each is damaged.
  const worker_checkpoint::StateCopies copies = stores_[0]->Begin("memory", "id");
  ASSERT_EQ(copies.size(), 4u);
  StepId newest;
  for (const auto& copy : copies) newest = std::max(newest, copy->step());
  StepId older;
  for (const auto& copy : copies) {
    if (copy->step() < newest) older = std::max(older, copy->step());
    if (copy->step() != newest) continue;
    reinterpret_cast<unsigned char*>(copy->Values(copy->layers().front()).data())[3] ^= 4U;
  }
  const Outcome second = Train(2, StepId(first.last), /*stops=*/false);
  ASSERT_TRUE(second.resumed[0].ok()) << second.resumed[0].status();
  EXPECT_EQ(second.resumed[0]->step, older);
  ExpectUndisturbed(second);
}

TEST_F(MemoryCopiesTest, ARunThatHaltsCopiesItsLastStepSoThatNoneIsRepeated) {
  every_steps_ = 1000;
  const Outcome first = Train(1, StepId(0), /*stops=*/false, /*halts=*/true);
  ASSERT_LT(first.last, kSteps);
  const Outcome second = Train(2, StepId(first.last), /*stops=*/false);
  for (const auto& resumed : second.resumed) {
    ASSERT_TRUE(resumed.ok()) << resumed.status();
    EXPECT_TRUE(resumed->from_memory);
    EXPECT_EQ(resumed->step, StepId(first.last));
  }
  ExpectUndisturbed(second);
}

TEST_F(MemoryCopiesTest, AGenerationThatKeepsNoCopiesGoesOnFromThoseOfTheLastOneAndFreesThem) {
  const Outcome first = Train(1, StepId(0), /*stops=*/true);
  every_steps_ = 0;
  const Outcome second = Train(2, StepId(first.last), /*stops=*/false);
  ASSERT_TRUE(second.resumed[0].ok()) << second.resumed[0].status();
  EXPECT_TRUE(second.resumed[0]->from_memory);
  EXPECT_TRUE(stores_[0]->Begin("memory", "id").empty());
  ExpectUndisturbed(second);
}

TEST_F(MemoryCopiesTest, WhatAJobTurnsOffIsFreed) {
  Train(1, StepId(0), /*stops=*/true);
  EXPECT_FALSE(stores_[0]->Begin("memory", "id").empty());
  every_steps_ = 0;
  const Outcome second = Train(2, StepId(0), /*stops=*/false);
  EXPECT_FALSE(second.resumed[0]->from_memory);
  EXPECT_TRUE(stores_[0]->Begin("memory", "id").empty());
}

}  // namespace
}  // namespace takt::session
