// SPDX-License-Identifier: Apache-2.0
// Tests the engine with fake instructions, which put values in slots instead of tensors.
#include "worker/engine/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <mutex>
#include <random>
#include <thread>

#include "absl/strings/str_cat.h"
#include "tests/testing/inproc_hub.h"
#include "worker/engine/engine_testing.h"

namespace takt::engine {
namespace {

using program::Direction;
using program::Instruction;
using program::LaneKind;
using program::Op;
using program::Program;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A gate that a test opens and that others wait for.
class Gate {
 public:
  void Open() {
    std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  void Wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return open_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
};

TEST(Engine, EqualsSequentialExecutionOnRandomPrograms) {
  constexpr int kSteps = 12;
  for (unsigned seed = 0; seed < 300; ++seed) {
    const Program program = RandomProgram(seed);
    FakeCompute expected(program.slots.size()), actual(program.slots.size());
    for (int step = 1; step <= kSteps; ++step) {
      for (const Instruction& instruction : program.body) expected.Mix(instruction, StepId(step));
    }
    const auto engine = MakeEngine(program, actual);
    // There are two calls, because positions carry over from one to the next.
    ASSERT_TRUE(engine->Run(StepId(1), StepId(5), nullptr).ok());
    ASSERT_TRUE(engine->Run(StepId(6), StepId(kSteps), nullptr).ok());
    ASSERT_EQ(actual.slots, expected.slots) << "seed " << seed;
  }
}

TEST(Engine, PrologueAndEpilogueRunOnceAroundTheStepsAndWorkMayBeForTheNext) {
  Program program;
  program.slots.resize(1);
  program.lanes.resize(1);
  const Instruction touch{
      .op = Op::kForward, .lane = LaneId(0), .stage = StageId(0), .writes = {SlotId(0)}};
  int serial = 0;
  for (auto* list : {&program.prologue, &program.body, &program.epilogue}) {
    list->push_back(touch);
    list->back().microbatch = MicrobatchId(serial++);
  }
  program.body.push_back(touch);
  program.body.back().microbatch = MicrobatchId(3);
  program.body.back().step_ahead = 1;
  FakeCompute compute(1);
  std::vector<std::string> ran;
  compute.before = [&](const Instruction& instruction, StepId step) {
    ran.push_back(absl::StrCat(instruction.microbatch.value(), "@", step.value()));
    return absl::OkStatus();
  };
  const auto engine = MakeEngine(program, compute);
  const auto on_step = [&](const StepTiming& timing) {
    EXPECT_EQ(timing.prologue != nullptr, timing.step == StepId(4));
    if (timing.prologue == nullptr) return;
    ASSERT_EQ(timing.prologue->size(), 1u);
    const InstructionTiming& prologue = timing.prologue->front();
    EXPECT_LE(timing.start_nanos, prologue.start_nanos);
    EXPECT_LE(prologue.start_nanos, prologue.end_nanos);
    EXPECT_LE(prologue.end_nanos, timing.timings->front().start_nanos);
  };
  ASSERT_TRUE(engine->Run(StepId(4), StepId(5), on_step).ok());
  EXPECT_THAT(ran, ElementsAre("0@4", "1@4", "3@5", "1@5", "3@6", "2@5"));
}

TEST(Engine, EndsAllLanesAfterTheSameStepOnRandomPrograms) {
  for (unsigned seed = 0; seed < 300; ++seed) {
    Program program = RandomProgram(seed);
    if (seed % 2 == 0) program.prologue = {program.body.back()};
    const MicrobatchId asker(static_cast<int>(seed % program.body.size()));
    const StepId asked(1 + seed % 8), last(8);
    const StepId end(std::min(asked.value() + 1, last.value()));
    FakeCompute expected(program.slots.size()), actual(program.slots.size());
    const auto mix = [&](StepId from, StepId to) {
      for (const Instruction& instruction : program.prologue) expected.Mix(instruction, from);
      for (StepId step = from; step <= to; step = StepId(step.value() + 1)) {
        for (const Instruction& instruction : program.body) expected.Mix(instruction, step);
      }
    };
    std::unique_ptr<Engine> engine;
    actual.before = [&](const Instruction& instruction, StepId step) {
      if (instruction.microbatch == asker && step == asked)
        engine->EndAfter(StepId(step.value() + 1));
      return absl::OkStatus();
    };
    engine = MakeEngine(program, actual);
    StepId reported;
    const auto report = [&](const StepTiming& timing) { reported = timing.step; };
    ASSERT_EQ(engine->Run(StepId(1), last, report), absl::OkStatus());
    mix(StepId(1), end);
    ASSERT_EQ(reported, end) << "seed " << seed;
    ASSERT_EQ(actual.slots, expected.slots) << "seed " << seed;
    // The next run goes on where this one ended.
    const StepId next(end.value() + 1), next_last(end.value() + 3);
    ASSERT_EQ(engine->Run(next, next_last, report), absl::OkStatus());
    mix(next, next_last);
    ASSERT_EQ(reported, next_last) << "seed " << seed;
    ASSERT_EQ(actual.slots, expected.slots) << "seed " << seed;
  }
}

TEST(Engine, ReportsEveryStepOnceInOrderWithTimingsOfThatStep) {
  const Program program = RandomProgram(7);
  FakeCompute compute(program.slots.size());
  const auto engine = MakeEngine(program, compute);
  std::vector<std::int64_t> steps;
  std::int64_t previous_end = 0;
  const absl::Status status = engine->Run(StepId(3), StepId(40), [&](const StepTiming& timing) {
    steps.push_back(timing.step.value());
    ASSERT_EQ(timing.timings->size(), program.body.size());
    std::int64_t busy = 0, end = 0;
    for (const InstructionTiming& instruction : *timing.timings) {
      EXPECT_GT(instruction.start_nanos, 0);
      EXPECT_LE(instruction.start_nanos, instruction.end_nanos);
      busy += instruction.end_nanos - instruction.start_nanos;
      end = std::max(end, instruction.end_nanos);
    }
    EXPECT_EQ(timing.compute_nanos, busy);
    EXPECT_EQ(timing.end_nanos, end);
    EXPECT_GT(timing.end_nanos, previous_end);
    if (previous_end != 0) {
      EXPECT_EQ(timing.start_nanos, previous_end);
    }
    previous_end = timing.end_nanos;
  });
  ASSERT_TRUE(status.ok()) << status;
  ASSERT_EQ(steps.size(), 38u);
  for (std::size_t i = 0; i < steps.size(); ++i)
    EXPECT_EQ(steps[i], static_cast<std::int64_t>(3 + i));
}

TEST(Engine, NoLaneIsTwoStepsAheadOfTheReport) {
  Program program;
  program.slots.resize(1);
  program.lanes.resize(1);
  program.body = {
      {.op = Op::kForward, .lane = LaneId(0), .stage = StageId(0), .microbatch = MicrobatchId(0)}};
  FakeCompute compute(1);
  std::atomic<std::int64_t> reported{0};
  compute.before = [&](const Instruction&, StepId step) {
    EXPECT_LE(step.value(), reported.load() + 2);
    return absl::OkStatus();
  };
  const auto engine = MakeEngine(program, compute);
  EXPECT_TRUE(engine
                  ->Run(StepId(1), StepId(200),
                        [&](const StepTiming& timing) {
                          std::this_thread::yield();
                          reported = timing.step.value();
                        })
                  .ok());
  EXPECT_EQ(reported, 200);
}

// Two lanes: 0F0 on the first writes a slot that 0F1 on the second reads.
Program TwoLanes() {
  Program program;
  program.slots.resize(1);
  program.lanes = {{.kind = LaneKind::kCompute}, {.kind = LaneKind::kReduce}};
  program.body = {{.op = Op::kForward,
                   .lane = LaneId(0),
                   .stage = StageId(0),
                   .microbatch = MicrobatchId(0),
                   .writes = {SlotId(0)}},
                  {.op = Op::kForward,
                   .lane = LaneId(1),
                   .stage = StageId(0),
                   .microbatch = MicrobatchId(1),
                   .reads = {SlotId(0)}}};
  program.pp_rank = PpRank(2);
  return program;
}

TEST(Engine, FirstErrorEndsTheRunWithItsPlaceAndSticks) {
  const Program program = TwoLanes();
  FakeCompute compute(1);
  compute.before = [](const Instruction& instruction, StepId step) -> absl::Status {
    if (step == StepId(3) && instruction.microbatch == MicrobatchId(0))
      return absl::DataLossError("bad tokens");
    return absl::OkStatus();
  };
  const auto engine = MakeEngine(program, compute);
  int reports = 0;
  const absl::Status status =
      engine->Run(StepId(1), StepId(9), [&](const StepTiming&) { ++reports; });
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(status.message(), "step 3, pp rank 2, 0F0: bad tokens");
  EXPECT_EQ(reports, 2);
  EXPECT_EQ(engine->Run(StepId(10), StepId(11), nullptr), status);
  engine->Abort(absl::CancelledError("too late to matter"));
  EXPECT_EQ(engine->Run(StepId(10), StepId(11), nullptr), status);
}

TEST(Engine, StatusOfAHangSaysWhatEachLaneWaitsForAndAbortEndsIt) {
  const Program program = TwoLanes();
  FakeCompute compute(1);
  Gate hanging, release;
  compute.before = [&](const Instruction& instruction, StepId step) -> absl::Status {
    if (step == StepId(2) && instruction.microbatch == MicrobatchId(0)) {
      hanging.Open();
      release.Wait();
    }
    return absl::OkStatus();
  };
  const auto engine = MakeEngine(program, compute);
  absl::Status result;
  std::thread runner([&] { result = engine->Run(StepId(1), StepId(3), nullptr); });
  hanging.Wait();
  // The second lane reaches its wait at a time of its own.
  std::vector<LaneStatus> status;
  do {
    std::this_thread::yield();
    status = engine->Status();
  } while (status[1].step != StepId(2) || status[1].waiting_for.empty());
  EXPECT_EQ(status[0].step, StepId(2));
  EXPECT_EQ(status[0].instruction, "0F0");
  EXPECT_EQ(status[0].waiting_for, "");
  EXPECT_EQ(status[1].instruction, "0F1");
  EXPECT_EQ(status[1].waiting_for, "lane compute: 0F0");
  EXPECT_GT(status[0].nanos, 0);
  EXPECT_GT(status[1].nanos, 0);
  engine->Abort(absl::UnavailableError("worker w1 is gone"));
  release.Open();
  runner.join();
  EXPECT_EQ(result.code(), absl::StatusCode::kAborted);
  EXPECT_THAT(std::string(result.message()), HasSubstr("worker w1 is gone"));
}

std::vector<std::string> Names(const std::vector<DoneInstruction>& done) {
  std::vector<std::string> names;
  for (const DoneInstruction& each : done)
    names.push_back(absl::StrCat(each.instruction, "@", each.step.value()));
  return names;
}

TEST(Engine, LastDoneIsWhatLanesFinishedBeforeTheHangByTheirEnds) {
  const Program program = TwoLanes();
  FakeCompute compute(1);
  Gate hanging, release;
  compute.before = [&](const Instruction& instruction, StepId step) -> absl::Status {
    if (step == StepId(4) && instruction.microbatch == MicrobatchId(1)) {
      hanging.Open();
      release.Wait();
    }
    return absl::OkStatus();
  };
  const auto engine = MakeEngine(program, compute);
  EXPECT_THAT(engine->LastDone(16), ::testing::IsEmpty());
  std::thread runner([&] { engine->Run(StepId(1), StepId(5), nullptr).IgnoreError(); });
  hanging.Wait();
  // A lane keeps the times of two steps, and may be writing over the older one.
  EXPECT_THAT(Names(engine->LastDone(16)), ElementsAre("0F1@3", "0F0@4"));
  EXPECT_THAT(Names(engine->LastDone(1)), ElementsAre("0F0@4"));
  const DoneInstruction last = engine->LastDone(1).at(0);
  EXPECT_GE(last.nanos, 0);
  EXPECT_GE(engine->LastDone(1).at(0).ended_nanos_ago, last.ended_nanos_ago);
  engine->Abort(absl::UnavailableError("worker w1 is gone"));
  release.Open();
  runner.join();
  EXPECT_THAT(Names(engine->LastDone(1)), ElementsAre("0F1@4"));
}

// pp rank 0 computes a value and sends it; pp rank 1 receives it and uses it; a gradient comes
// back.
Program TwoRanks(int pp_rank) {
  Program program;
  program.pp_rank = PpRank(pp_rank);
  program.pp_size = program.num_stages = 2;
  program.slots.resize(2);
  const PpRank peer(1 - pp_rank);
  const Direction out = pp_rank == 0 ? Direction::kActivation : Direction::kGradient;
  const Direction in = pp_rank == 0 ? Direction::kGradient : Direction::kActivation;
  program.lanes = {{.kind = LaneKind::kCompute},
                   {.kind = LaneKind::kSend, .peer = peer, .direction = out},
                   {.kind = LaneKind::kRecv, .peer = peer, .direction = in}};
  for (int m = 0; m < 3; ++m) {
    const Instruction send{.op = Op::kSend,
                           .lane = LaneId(1),
                           .stage = StageId(pp_rank),
                           .microbatch = MicrobatchId(m),
                           .reads = {SlotId(0)}};
    const Instruction recv{.op = Op::kRecv,
                           .lane = LaneId(2),
                           .stage = StageId(1 - pp_rank),
                           .microbatch = MicrobatchId(m),
                           .writes = {SlotId(1)}};
    const Instruction compute{.op = Op::kForward,
                              .lane = LaneId(0),
                              .stage = StageId(pp_rank),
                              .microbatch = MicrobatchId(m),
                              .reads = {SlotId(1)},
                              .writes = {SlotId(0)}};
    if (pp_rank == 0) {
      program.body.insert(program.body.end(), {compute, send, recv});
    } else {
      program.body.insert(program.body.end(), {recv, compute, send});
    }
  }
  return program;
}

struct TwoRankFixture {
  TwoRankFixture() {
    std::thread other([&] { engine[1] = Make(1); });
    engine[0] = Make(0);
    other.join();
  }
  std::unique_ptr<Engine> Make(int rank) {
    transports[rank] = hub.Connect({.rank = Rank(rank), .num_ranks = 2});
    return MakeEngine(programs[rank], compute[rank],
                      {.transport = transports[rank].get(),
                       .rank_of = [](PpRank pp_rank) { return Rank(pp_rank.value()); },
                       .generation = 5});
  }

  testing::InprocHub hub;
  Program programs[2] = {TwoRanks(0), TwoRanks(1)};
  FakeCompute compute[2] = {FakeCompute(2), FakeCompute(2)};
  std::unique_ptr<transport::Transport> transports[2];
  std::unique_ptr<Engine> engine[2];
};

TEST(Engine, MessagesBetweenRanksCarryTheValuesOfSequentialExecution) {
  constexpr int kSteps = 20;
  FakeCompute alone[2] = {FakeCompute(2), FakeCompute(2)};
  const Program programs[2] = {TwoRanks(0), TwoRanks(1)};
  for (int step = 1; step <= kSteps; ++step) {
    for (int m = 0; m < 3; ++m) {
      alone[0].Mix(programs[0].body[m * 3], StepId(step));
      alone[1].slots[1] = alone[0].slots[0];
      alone[1].Mix(programs[1].body[m * 3 + 1], StepId(step));
      alone[0].slots[1] = alone[1].slots[0];
    }
  }
  TwoRankFixture ranks;
  std::thread other(
      [&] { EXPECT_TRUE(ranks.engine[1]->Run(StepId(1), StepId(kSteps), nullptr).ok()); });
  EXPECT_TRUE(ranks.engine[0]->Run(StepId(1), StepId(kSteps), nullptr).ok());
  other.join();
  EXPECT_EQ(ranks.compute[0].slots, alone[0].slots);
  EXPECT_EQ(ranks.compute[1].slots, alone[1].slots);
}

TEST(Engine, AHungPeerShowsInStatusAndAbortWakesTheReceive) {
  TwoRankFixture ranks;
  absl::Status result;
  std::thread runner([&] { result = ranks.engine[1]->Run(StepId(1), StepId(1), nullptr); });
  std::vector<LaneStatus> status;
  do {
    std::this_thread::yield();
    status = ranks.engine[1]->Status();
  } while (status[2].waiting_for.empty() || status[0].waiting_for.empty());
  EXPECT_EQ(status[2].instruction, "0RECV_F0");
  EXPECT_EQ(status[2].waiting_for, "RECV 0F0 from pp rank 0");
  EXPECT_EQ(status[0].waiting_for, "lane recv F from 0: 0RECV_F0");
  ranks.engine[1]->Abort(absl::UnavailableError("rank 0 is silent"));
  runner.join();
  EXPECT_EQ(result.code(), absl::StatusCode::kAborted);
}

TEST(Engine, AnErrorOfOneRankReachesTheOtherThroughItsTransport) {
  TwoRankFixture ranks;
  ranks.compute[0].before = [](const Instruction&, StepId) {
    return absl::InternalError("broken");
  };
  std::thread other([&] {
    EXPECT_EQ(ranks.engine[0]->Run(StepId(1), StepId(2), nullptr).code(),
              absl::StatusCode::kInternal);
    ranks.engine[0].reset();  // this closes its channels
  });
  const absl::Status status = ranks.engine[1]->Run(StepId(1), StepId(2), nullptr);
  other.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("step 1, pp rank 1, 0RECV_F0: "));
}

TEST(Engine, RefusesAProgramItCannotRun) {
  FakeCompute compute(1);
  Program program = TwoLanes();
  program.body[0].lane = LaneId(7);
  EXPECT_EQ(Engine::Create(program, compute, {}).status().code(),
            absl::StatusCode::kInvalidArgument);
  program = TwoLanes();
  program.body[0].writes = {SlotId(1)};
  EXPECT_EQ(Engine::Create(program, compute, {}).status().code(),
            absl::StatusCode::kInvalidArgument);
  program = TwoLanes();
  program.body[0].op = Op::kSend;
  EXPECT_EQ(Engine::Create(program, compute, {}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Engine::Create(TwoRanks(0), compute, {}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace takt::engine
