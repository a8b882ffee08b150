// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/program/lowering.h"
#include "common/schedule/generate.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/inproc_hub.h"
#include "worker/backend/cpu/cpu_backend.h"
#include "worker/train/trainer.h"
#include "worker/transport/channel_collective.h"

namespace takt::train {
namespace {

using program::Instruction;
using program::Op;

// Two ranks with one stage of one layer each, run by hand.
class EmulatedTrainerTest : public ::testing::Test {
 protected:
  EmulatedTrainerTest() {
    model_ = model::BuildModel({.family = model::Family::kEmulated,
                                .layers = 2,
                                .forward_seconds = 1e-3,
                                .input_grad_seconds = 2e-3,
                                .weight_grad_seconds = 3e-3,
                                .activation_bytes = 256},
                               1)
                 .value();
    job_.model = model_.config;
    job_.global_batch = 2;
    partition_ = {{StageId(0), PpRank(0), LayerId(0), LayerId(1)},
                  {StageId(1), PpRank(1), LayerId(1), LayerId(2)}};
    const auto schedule = schedule::Generate("1f1b", {.num_ranks = 2, .num_microbatches = 2});
    programs_ = program::Lower(*schedule, {}).value();
    for (int rank = 0; rank < 2; ++rank) {
      trainers_[rank] = CreateTrainer({.job = &job_,
                                       .model = &model_,
                                       .partition = &partition_,
                                       .program = &programs_[rank],
                                       .mesh = {.pp_size = 2, .dp_size = 1},
                                       .rank = Rank(rank),
                                       .halt_requested = &halt_requested_})
                            .value();
    }
  }

  const Instruction& Find(int rank, const std::string& text) const {
    for (const Instruction& instruction : programs_[rank].body) {
      if (program::ToString(instruction, programs_[rank]) == text) return instruction;
    }
    ADD_FAILURE() << "no " << text;
    return programs_[rank].body.front();
  }

  absl::Status Run(int rank, const std::string& text, std::int64_t step = 1) {
    return Run(rank, Find(rank, text), step);
  }
  absl::Status Run(int rank, const Instruction& instruction, std::int64_t step = 1) {
    return trainers_[rank]->Bind(instruction).value()->Run(StepId(step));
  }

  // Does what the engine does with "0SEND_F0" on rank 0 and "0RECV_F0" on rank 1.
  void PassActivation(const std::string& send, const std::string& receive) {
    const auto from = trainers_[0]->SlotBytes(Find(0, send).reads[0]);
    const auto to = trainers_[1]->SlotBytes(Find(1, receive).writes[0]);
    ASSERT_EQ(from.size(), 256U);
    ASSERT_EQ(to.size(), 256U);
    std::memcpy(to.data(), from.data(), to.size());
  }

  config::JobSpec job_;
  model::Model model_;
  mesh::Partition partition_;
  std::atomic<HaltRequest> halt_requested_ = HaltRequest::kNone;
  std::vector<program::Program> programs_;
  std::map<int, std::unique_ptr<Trainer>> trainers_;
};

TEST_F(EmulatedTrainerTest, AcceptsTheMessageThatItsPeerMade) {
  ASSERT_TRUE(Run(0, "0F0").ok());
  PassActivation("0SEND_F0", "0RECV_F0");
  EXPECT_TRUE(Run(1, "1F0").ok());
}

TEST_F(EmulatedTrainerTest, RefusesAMessageOfAnotherMicrobatchOrStep) {
  ASSERT_TRUE(Run(0, "0F1").ok());
  PassActivation("0SEND_F1", "0RECV_F0");
  const absl::Status status = Run(1, "1F0");
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("microbatch 1"));
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("1F0"));

  ASSERT_TRUE(Run(0, "0F0", 2).ok());
  PassActivation("0SEND_F0", "0RECV_F0");
  EXPECT_FALSE(Run(1, "1F0", 1).ok());
  EXPECT_TRUE(Run(1, "1F0", 2).ok());
}

TEST_F(EmulatedTrainerTest, RefusesAMessageThatNeverCame) { EXPECT_FALSE(Run(1, "1F0").ok()); }

TEST_F(EmulatedTrainerTest, TakesAtLeastItsTime) {
  const auto nanos_of = [&](const std::string& text) {
    const std::int64_t start = Clock::Real().SteadyNanos();
    EXPECT_TRUE(Run(0, text).ok());
    return Clock::Real().SteadyNanos() - start;
  };
  EXPECT_GE(nanos_of("0F0"), 1'000'000);
  // B takes as long as I and W, once the gradient that it verifies has arrived.
  const Instruction& backward = Find(0, "0B0");
  ASSERT_TRUE(Run(0, "0F0").ok());
  PassActivation("0SEND_F0", "0RECV_F0");
  ASSERT_TRUE(Run(1, "1F0").ok());
  ASSERT_TRUE(Run(1, "1B0").ok());
  const auto from = trainers_[1]->SlotBytes(Find(1, "1SEND_B0").reads[0]);
  const auto to = trainers_[0]->SlotBytes(Find(0, "1RECV_B0").writes[0]);
  std::memcpy(to.data(), from.data(), to.size());
  EXPECT_EQ(backward.op, Op::kBackward);
  EXPECT_GE(nanos_of("0B0"), 5'000'000);
}

TEST_F(EmulatedTrainerTest, AnOverlappedPairIsItsTwoPartsAtOnce) {
  const Instruction& backward = Find(0, "0B0");
  Instruction overlap = Find(0, "0F1");
  overlap.op = Op::kOverlap;
  overlap.backward_stage = backward.stage;
  overlap.backward_microbatch = backward.microbatch;
  overlap.reads.insert(overlap.reads.end(), backward.reads.begin(), backward.reads.end());
  overlap.writes.insert(overlap.writes.end(), backward.writes.begin(), backward.writes.end());
  // Neither part begins before the gradient that B needs has arrived.
  EXPECT_FALSE(Run(0, overlap).ok());

  ASSERT_TRUE(Run(0, "0F0").ok());
  PassActivation("0SEND_F0", "0RECV_F0");
  ASSERT_TRUE(Run(1, "1F0").ok());
  ASSERT_TRUE(Run(1, "1B0").ok());
  const auto from = trainers_[1]->SlotBytes(Find(1, "1SEND_B0").reads[0]);
  const auto to = trainers_[0]->SlotBytes(Find(0, "1RECV_B0").writes[0]);
  std::memcpy(to.data(), from.data(), to.size());
  const std::int64_t start = Clock::Real().SteadyNanos();
  EXPECT_TRUE(Run(0, overlap).ok());
  EXPECT_GE(Clock::Real().SteadyNanos() - start, 6'000'000);
  PassActivation("0SEND_F1", "0RECV_F1");
  EXPECT_TRUE(Run(1, "1F1").ok());
}

TEST_F(EmulatedTrainerTest, ResultsDependOnTheStepAlone) {
  for (int rank = 0; rank < 2; ++rank) {
    ASSERT_TRUE(Run(rank, "NORM_EXCHANGE", 3).ok());
    ASSERT_TRUE(Run(rank, "NORM_EXCHANGE", 4).ok());
  }
  EXPECT_EQ(trainers_[0]->result(StepId(3)).loss, trainers_[1]->result(StepId(3)).loss);
  EXPECT_NE(trainers_[0]->result(StepId(3)).loss, trainers_[0]->result(StepId(4)).loss);
  EXPECT_EQ(trainers_[0]->result(StepId(3)).tokens, 2);
}

TEST_F(EmulatedTrainerTest, TheExchangeOfAStepSaysWhetherARankWasAskedToHalt) {
  ASSERT_TRUE(Run(0, "NORM_EXCHANGE", 3).ok());
  halt_requested_ = HaltRequest::kInMemory;
  ASSERT_TRUE(Run(0, "NORM_EXCHANGE", 4).ok());
  EXPECT_EQ(trainers_[0]->result(StepId(3)).halt, HaltRequest::kNone);
  EXPECT_EQ(trainers_[0]->result(StepId(4)).halt, HaltRequest::kInMemory);
}

// Two replicas of two layers of 40,000 parameters each.
absl::Status TrainReplica(transport::Collective& group, bool shares) {
  config::JobSpec job;
  job.global_batch = 4;
  const model::Model model = model::BuildModel({.family = model::Family::kEmulated,
                                                .layers = 2,
                                                .activation_bytes = 256,
                                                .parameter_bytes = 160'000},
                                               1)
                                 .value();
  job.model = model.config;
  const mesh::Partition partition = {{StageId(0), PpRank(0), LayerId(0), LayerId(2)}};
  const auto schedule = schedule::Generate("1f1b", {.num_ranks = 1, .num_microbatches = 2});
  const std::vector<program::Program> programs =
      program::Lower(*schedule, {.stages = {{.first_layer = LayerId(0), .last_layer = LayerId(2)}},
                                 .reduce_gradients = true,
                                 .shard_optimizer = shares})
          .value();
  const auto backends = backend::CreateCpuBackends({.threads = 1});
  ASSIGN_OR_RETURN(const std::unique_ptr<Trainer> trainer,
                   CreateTrainer({.job = &job,
                                  .model = &model,
                                  .partition = &partition,
                                  .program = &programs.front(),
                                  .mesh = {.pp_size = 1, .dp_size = 2},
                                  .rank = Rank(group.index()),
                                  .backends = backends.get(),
                                  .replicas = {{StageId(0), &group}}}));
  for (const StepId step : {StepId(1), StepId(2)}) {
    for (const Instruction& instruction : programs.front().body) {
      ASSIGN_OR_RETURN(const std::unique_ptr<engine::BoundInstruction> bound,
                       trainer->Bind(instruction));
      RETURN_IF_ERROR(bound->Run(step));
    }
  }
  return absl::OkStatus();
}

TEST(EmulatedParameters, AreSummedUpdatedAndGathered) {
  for (const bool shares : {false, true}) {
    testing::InprocHub hub;
    std::vector<std::jthread> threads;
    for (int index = 0; index < 2; ++index) {
      threads.emplace_back([&, index] {
        const auto transport = hub.Connect({.rank = Rank(index), .num_ranks = 2});
        const auto group = transport::CreateCollective(
            transport.get(), {.name = "replicas", .ranks = {Rank(0), Rank(1)}, .index = index});
        ASSERT_TRUE(group.ok()) << group.status();
        const absl::Status trained = TrainReplica(**group, shares);
        EXPECT_TRUE(trained.ok()) << trained;
      });
    }
  }
}

}  // namespace
}  // namespace takt::train
