// SPDX-License-Identifier: Apache-2.0
// Runs the ranks of an emulated job as threads of this process, over the transport that real ranks
// use.
#include "worker/session/pipeline_runner.h"

#include <array>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "common/layout/slot_layout.h"
#include "common/mesh/mesh.h"
#include "common/program/lowering.h"
#include "common/schedule/generate.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/map_rendezvous.h"
#include "worker/backend/cpu/cpu_backend.h"
#include "worker/session/shared_rendezvous_testing.h"

namespace takt::session {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int kMicrobatches = 2;
constexpr std::int64_t kActivationBytes = 256;

MATCHER_P(IsEnd, end, "") { return arg.ok() && *arg == end; }

StepId StepOf(const Report& report) { return std::get<control::RankStepReport>(report).step; }

class PipelineRunnerTest : public ::testing::Test {
 protected:
  // Makes a rank of a job with one emulated layer on each of two pp ranks.
  std::unique_ptr<RankRunner> Runner(int rank, std::int64_t steps,
                                     const mesh::Mesh& mesh = {.pp_size = 2, .dp_size = 1}) {
    config::JobSpec job;
    job.name = "emulated";
    job.model = {.family = model::Family::kEmulated,
                 .layers = 2,
                 .forward_seconds = 1e-4,
                 .input_grad_seconds = 1e-4,
                 .weight_grad_seconds = 1e-4,
                 .activation_bytes = kActivationBytes,
                 .collective_bytes = 64};
    job.global_batch = kMicrobatches;
    job.steps = steps;
    job.parallelism.tensor = mesh.tp_size;
    const mesh::Partition partition = {{StageId(0), PpRank(0), LayerId(0), LayerId(1)},
                                       {StageId(1), PpRank(1), LayerId(1), LayerId(2)}};
    const model::Model model = config::BuildModelOf(job, 1, config::DeviceKind::kCpu).value();
    const auto schedule =
        schedule::Generate("1f1b", {.num_ranks = 2, .num_microbatches = kMicrobatches}).value();
    const auto programs =
        program::Lower(schedule, {.stages = {layout::ShapeOf(model, partition[0]),
                                             layout::ShapeOf(model, partition[1])}})
            .value();
    control::Assignment assignment;
    assignment.key = {"emulated", Generation(1)};
    assignment.rank = Rank(rank);
    assignment.job = job;
    assignment.mesh = mesh;
    assignment.partition = partition;
    assignment.program = programs[mesh.PpRankOf(Rank(rank)).value()];
    assignment.secret = "secret";
    return CreatePipelineRunner({.make_rendezvous =
                                     [map = map_](const control::JobKey&) {
                                       return std::make_unique<SharedRendezvous>(map);
                                     },
                                 .metrics = &registry_,
                                 .make_backends =
                                     [](const control::Assignment&, int threads) {
                                       return backend::CreateCpuBackends({.threads = threads});
                                     }},
                                std::move(assignment));
  }

  std::shared_ptr<testing::MapRendezvous> map_ = std::make_shared<testing::MapRendezvous>();
  metrics::Registry registry_;
};

TEST_F(PipelineRunnerTest, TwoRanksTrainToTheLastStepAndReportEachOnce) {
  std::array<std::vector<std::int64_t>, 2> steps;
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      const auto runner = Runner(rank, 3);
      ASSERT_TRUE(runner->Prepare().ok());
      const auto end = runner->Run([&](const Report& item) {
        const auto& report = std::get<control::RankStepReport>(item);
        steps[rank].push_back(report.step.value());
        EXPECT_EQ(report.rank, Rank(rank));
        EXPECT_GT(report.step_seconds, 0);
        EXPECT_GE(report.busy_seconds, kMicrobatches * 3e-4);
      });
      EXPECT_THAT(end, IsEnd(RunEnd::kLastStep));
      EXPECT_EQ(runner->Status().last_step, StepId(3));
    });
  }
  for (std::thread& rank : ranks) rank.join();
  EXPECT_THAT(steps[0], ElementsAre(1, 2, 3));
  EXPECT_THAT(steps[1], ElementsAre(1, 2, 3));
  EXPECT_THAT(
      registry_.Text(),
      HasSubstr("takt_op_duration_seconds_count{job=\"emulated\",kind=\"F\",stage=\"1\"} 6"));
}

// Whenever they are asked to halt, and whichever rank is asked first, both end at the same step.
TEST_F(PipelineRunnerTest, RanksThatAreAskedToHaltEndAfterTheSameStep) {
  for (int round = 0; round < 20; ++round) {
    map_ = std::make_shared<testing::MapRendezvous>();
    std::array<StepId, 2> last;
    std::array<std::unique_ptr<RankRunner>, 2> runners = {Runner(0, 1'000'000),
                                                          Runner(1, 1'000'000)};
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < 2; ++rank) {
      ranks.emplace_back([&, rank] {
        ASSERT_TRUE(runners[rank]->Prepare().ok());
        const auto end = runners[rank]->Run([&](const Report& report) {
          last[rank] = StepOf(report);
          if (last[rank] == StepId(1 + round % 5))
            runners[(rank + round) % 2]->Halt(/*in_memory=*/false);
        });
        EXPECT_THAT(end, IsEnd(RunEnd::kHalted));
        EXPECT_EQ(runners[rank]->Status().last_step, last[rank]);
      });
    }
    for (std::thread& rank : ranks) rank.join();
    EXPECT_EQ(last[0], last[1]);
    EXPECT_LE(last[0], StepId(1 + round % 5 + 3));
  }
}

TEST_F(PipelineRunnerTest, ARankThatIsAskedBeforeItRunsEndsAfterTheFirstSteps) {
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      const auto runner = Runner(rank, 1'000'000);
      runner->Halt(/*in_memory=*/false);
      ASSERT_TRUE(runner->Prepare().ok());
      EXPECT_THAT(runner->Run([](const Report&) {}), IsEnd(RunEnd::kHalted));
      EXPECT_EQ(runner->Status().last_step, StepId(2));
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

TEST_F(PipelineRunnerTest, AHaltThatComesWithTheLastStepIsAnOrdinaryEnd) {
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      const auto runner = Runner(rank, 2);
      runner->Halt(/*in_memory=*/false);
      ASSERT_TRUE(runner->Prepare().ok());
      EXPECT_THAT(runner->Run([](const Report&) {}), IsEnd(RunEnd::kLastStep));
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

TEST_F(PipelineRunnerTest, AMeshThatIsNotTheJobsIsRefusedBeforeAnythingIsOpened) {
  const absl::Status status =
      Runner(0, 3, {.pp_size = 2, .dp_size = 1, .cp_size = 2})->Prepare().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("2 x 1 x context 2 ranks"));
}

TEST_F(PipelineRunnerTest, RanksThatShareLayersTrainTogetherAndHaltAfterTheSameStep) {
  constexpr mesh::Mesh kMesh{.pp_size = 2, .dp_size = 1, .tp_size = 3};
  std::array<StepId, 6> last;
  std::array<std::unique_ptr<RankRunner>, 6> runners;
  for (int rank = 0; rank < kMesh.size(); ++rank) runners[rank] = Runner(rank, 1'000'000, kMesh);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kMesh.size(); ++rank) {
    ranks.emplace_back([&, rank] {
      ASSERT_TRUE(runners[rank]->Prepare().ok());
      const auto end = runners[rank]->Run([&](const Report& item) {
        last[rank] = StepOf(item);
        if (rank == 1 && last[rank] == StepId(3)) runners[4]->Halt(/*in_memory=*/false);
      });
      EXPECT_THAT(end, IsEnd(RunEnd::kHalted));
    });
  }
  for (std::thread& rank : ranks) rank.join();
  EXPECT_GE(last[0], StepId(3));
  for (const StepId each : last) EXPECT_EQ(each, last[0]);
}

TEST_F(PipelineRunnerTest, StopEndsAConnectionThatWaitsForAPeer) {
  const auto runner = Runner(0, 3);
  std::thread stopper([&] {
    while (runner->Status().instruction != "CONNECT") std::this_thread::yield();
    runner->Stop(absl::CancelledError("worker w2 died"));
  });
  EXPECT_FALSE(runner->Prepare().ok());
  stopper.join();
  EXPECT_THAT(runner->Status().waiting_for, HasSubstr("peers"));
}

TEST_F(PipelineRunnerTest, WhenAPeerLeavesTheOtherFailsSayingWhatItWaitedFor) {
  auto leaver = Runner(1, 1'000'000);
  absl::Notification fifth_step;
  std::thread peer([&] {
    ASSERT_TRUE(leaver->Prepare().ok());
    const auto end = leaver->Run([&](const Report& report) {
      if (StepOf(report) == StepId(5)) fifth_step.Notify();
    });
    EXPECT_FALSE(end.ok());
  });
  std::thread stopper([&] {
    fifth_step.WaitForNotification();
    leaver->Stop(absl::CancelledError("gone"));
    peer.join();
    leaver.reset();  // closes its connections
  });
  const auto runner = Runner(0, 1'000'000);
  ASSERT_TRUE(runner->Prepare().ok());
  const absl::Status status = runner->Run([](const Report&) {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_GE(runner->Status().last_step, StepId(1));
  EXPECT_FALSE(runner->Status().instruction.empty());
  const control::RankStatus at_the_end = runner->Status();
  EXPECT_THAT(at_the_end.waiting_for, HasSubstr("pp rank 1"));
  EXPECT_GE(at_the_end.instruction_step, StepId(1));
  EXPECT_GT(at_the_end.instruction_seconds, 0);
  ASSERT_FALSE(at_the_end.recent.empty());
  EXPECT_LE(at_the_end.recent.size(), control::kRecentInstructions);
  EXPECT_GE(at_the_end.recent.front().ended_seconds_ago,
            at_the_end.recent.back().ended_seconds_ago);
  stopper.join();
}

}  // namespace
}  // namespace takt::session
