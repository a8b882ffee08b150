// SPDX-License-Identifier: Apache-2.0
// Two ranks of an emulated job as threads of this process, over the transport that real ones use.
#include "worker/session/pipeline_runner.h"

#include <array>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "common/program/lowering.h"
#include "common/schedule/generate.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/map_rendezvous.h"

namespace takt::session {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int kMicrobatches = 2;
constexpr std::int64_t kActivationBytes = 256;

class SharedRendezvous final : public AbortableRendezvous {
 public:
  explicit SharedRendezvous(std::shared_ptr<testing::MapRendezvous> map) : map_(std::move(map)) {}
  absl::Status Set(const std::string& key, const std::string& value) override {
    return map_->Set(key, value);
  }
  absl::StatusOr<std::string> Wait(const std::string& key, absl::Duration timeout) override {
    return map_->Wait(key, timeout);
  }
  void Abort() override {}  // its waits are short: the transport looks up from each

 private:
  const std::shared_ptr<testing::MapRendezvous> map_;
};

class PipelineRunnerTest : public ::testing::Test {
 protected:
  // One of the two ranks of a job with an emulated layer on each.
  std::unique_ptr<RankRunner> Runner(int rank, std::int64_t steps) {
    config::JobSpec job;
    job.name = "emulated";
    job.model = {.family = model::Family::kEmulated,
                 .layers = 2,
                 .forward_seconds = 1e-4,
                 .input_grad_seconds = 1e-4,
                 .weight_grad_seconds = 1e-4,
                 .activation_bytes = kActivationBytes};
    job.global_batch = kMicrobatches;
    job.steps = steps;
    const auto schedule =
        schedule::Generate("1f1b", {.num_ranks = 2, .num_microbatches = kMicrobatches}).value();
    const auto programs =
        program::Lower(schedule, {.stages = {{LayerId(0), LayerId(1), kActivationBytes},
                                             {LayerId(1), LayerId(2)}}})
            .value();
    Assignment assignment;
    assignment.key = {"emulated", Generation(1)};
    assignment.rank = Rank(rank);
    assignment.job = job;
    assignment.mesh = {.pp_size = 2, .dp_size = 1};
    assignment.partition = {{StageId(0), PpRank(0), LayerId(0), LayerId(1)},
                            {StageId(1), PpRank(1), LayerId(1), LayerId(2)}};
    assignment.program = programs[rank];
    assignment.secret = "secret";
    return CreatePipelineRunner(
        {.make_rendezvous =
             [map = map_](const JobKey&) { return std::make_unique<SharedRendezvous>(map); },
         .metrics = &registry_},
        std::move(assignment));
  }

  const std::shared_ptr<testing::MapRendezvous> map_ = std::make_shared<testing::MapRendezvous>();
  metrics::Registry registry_;
};

TEST_F(PipelineRunnerTest, TwoRanksTrainToTheLastStepAndReportEachOnce) {
  std::array<std::vector<std::int64_t>, 2> steps;
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      const auto runner = Runner(rank, 3);
      ASSERT_EQ(runner->Prepare(), absl::OkStatus());
      EXPECT_EQ(runner->Run([&](const StepReport& report) {
        steps[rank].push_back(report.step.value());
        EXPECT_EQ(report.rank, Rank(rank));
        EXPECT_GT(report.step_seconds, 0);
        EXPECT_GE(report.busy_seconds, kMicrobatches * 3e-4);
      }),
                absl::OkStatus());
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
    ASSERT_EQ(leaver->Prepare(), absl::OkStatus());
    leaver
        ->Run([&](const StepReport& report) {
          if (report.step == StepId(5)) fifth_step.Notify();
        })
        .IgnoreError();
  });
  std::thread stopper([&] {
    fifth_step.WaitForNotification();
    leaver->Stop(absl::CancelledError("gone"));
    peer.join();
    leaver.reset();  // closes its connections
  });
  const auto runner = Runner(0, 1'000'000);
  ASSERT_EQ(runner->Prepare(), absl::OkStatus());
  const absl::Status status = runner->Run([](const StepReport&) {});
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_GE(runner->Status().last_step, StepId(1));
  EXPECT_FALSE(runner->Status().instruction.empty());
  EXPECT_THAT(runner->Status().waiting_for, HasSubstr("pp rank 1"));
  stopper.join();
}

}  // namespace
}  // namespace takt::session
