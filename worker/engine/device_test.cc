// SPDX-License-Identifier: Apache-2.0
// Tests the engine with instructions whose work is left on streams. Some streams do nothing before
// a thread waits for them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <map>
#include <random>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "worker/backend/discrete/task_stream.h"
#include "worker/engine/engine_testing.h"

namespace takt::engine {
namespace {

using backend::TaskStream;
using program::Instruction;
using program::Program;
using ::testing::HasSubstr;

// Leaves instructions on streams, as `streams` says.
class FakeDevice final : public Compute {
 public:
  explicit FakeDevice(std::size_t num_slots) : fake(num_slots) {}

  Bound Bind(const Instruction& instruction) override {
    const auto it = streams.find(&instruction);
    if (it == streams.end()) return fake.Bind(instruction);
    // Work that is left on the stream may run after the engine is destroyed.
    return MakeBound(it->second, [this, &instruction, stream = it->second](StepId step) {
      stream->Push([this, &instruction, step] { return fake.Run(instruction, step); });
      return absl::OkStatus();
    });
  }
  std::span<std::byte> SlotBytes(SlotId slot) override { return fake.SlotBytes(slot); }

  FakeCompute fake;
  std::map<const Instruction*, TaskStream*> streams;
};

std::vector<std::uint64_t> RunAlone(const Program& program, std::int64_t steps) {
  FakeCompute fake(program.slots.size());
  for (StepId step(1); step.value() <= steps; ++step) {
    for (const Instruction& instruction : program.body) fake.Mix(instruction, step);
  }
  return fake.slots;
}

TEST(EngineOnStreams, EqualsSequentialExecutionOnRandomPrograms) {
  constexpr std::int64_t kSteps = 7;
  for (unsigned seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    const Program program = RandomProgram(seed);
    std::mt19937 random(seed);
    std::vector<std::unique_ptr<TaskStream>> streams;  // one for each lane, or none
    for (std::size_t i = 0; i < program.lanes.size(); ++i) {
      const bool lazy = random() % 2 == 0;
      streams.push_back(random() % 3 == 0 ? nullptr : std::make_unique<TaskStream>(lazy));
    }
    FakeDevice device(program.slots.size());
    for (const Instruction& instruction : program.body) {
      TaskStream* const stream = streams[instruction.lane.value()].get();
      // Lanes with a stream leave most instructions on it.
      if (stream != nullptr && random() % 4 != 0) device.streams[&instruction] = stream;
    }
    std::int64_t reported = 0;
    const std::unique_ptr<Engine> engine = MakeEngine(program, device);
    const auto on_step = [&](const StepTiming& timing) {
      ++reported;
      for (const InstructionTiming& each : *timing.timings) {
        EXPECT_LE(each.start_nanos, each.end_nanos);
        EXPECT_LE(each.end_nanos, timing.end_nanos);
      }
    };
    ASSERT_TRUE(engine->Run(StepId(1), StepId(3), on_step).ok());
    ASSERT_TRUE(engine->Run(StepId(4), StepId(kSteps), on_step).ok());
    EXPECT_EQ(reported, kSteps);
    EXPECT_EQ(device.fake.slots, RunAlone(program, kSteps));
  }
}

TEST(EngineOnStreams, PrologueAndEpilogueAreOverBeforeWhatFollows) {
  Program program = RandomProgram(5);
  program.prologue = {program.body.front()};
  program.epilogue = {program.body.back()};
  std::vector<std::unique_ptr<TaskStream>> streams;
  for (std::size_t i = 0; i < program.lanes.size(); ++i)
    streams.push_back(std::make_unique<TaskStream>(/*lazy=*/true));
  FakeDevice device(program.slots.size());
  for (const auto* list : {&program.prologue, &program.body, &program.epilogue}) {
    for (const Instruction& instruction : *list)
      device.streams[&instruction] = streams[instruction.lane.value()].get();
  }
  FakeCompute alone(program.slots.size());
  alone.Mix(program.prologue.front(), StepId(1));
  for (const Instruction& instruction : program.body) alone.Mix(instruction, StepId(1));
  alone.Mix(program.epilogue.front(), StepId(1));
  const std::unique_ptr<Engine> engine = MakeEngine(program, device);
  ASSERT_TRUE(engine->Run(StepId(1), StepId(1), nullptr).ok());
  EXPECT_EQ(device.fake.slots, alone.slots);
}

// Sends leave the value of the slot on a stream that does nothing before it must.
class StreamTransport final : public transport::Transport {
 public:
  explicit StreamTransport(TaskStream& stream) : stream_(stream) {}

  absl::StatusOr<std::unique_ptr<transport::SendChannel>> OpenSend(Rank, const std::string&,
                                                                   std::size_t) override {
    return std::make_unique<Channel>(*this);
  }
  absl::StatusOr<std::unique_ptr<transport::RecvChannel>> OpenRecv(Rank, const std::string&,
                                                                   std::size_t) override {
    return absl::InternalError("not in this test");
  }
  void Abort() override {}
  absl::Status status() const override {
    return failed ? absl::UnavailableError("a link broke") : absl::OkStatus();
  }

  std::vector<std::uint64_t> sent;
  std::atomic<bool> failed = false;

 private:
  class Channel final : public transport::SendChannel {
   public:
    explicit Channel(StreamTransport& parent) : parent_(parent) {}
    absl::Status Send(const transport::MessageTag&, std::span<const std::byte> data) override {
      parent_.stream_.Push([this, data] {
        std::memcpy(&parent_.sent.emplace_back(), data.data(), sizeof(std::uint64_t));
        return absl::OkStatus();
      });
      return absl::OkStatus();
    }
    backend::Stream* stream() override { return &parent_.stream_; }

   private:
    StreamTransport& parent_;
  };

  TaskStream& stream_;
};

// F writes what SEND sends, again and again.
Program SendingProgram() {
  Program program{.pp_size = 2};
  program.slots.resize(1);
  program.lanes = {{.kind = program::LaneKind::kCompute},
                   {.kind = program::LaneKind::kSend, .peer = PpRank(1)}};
  for (int m = 0; m < 3; ++m) {
    program.body.push_back({.op = program::Op::kForward,
                            .lane = LaneId(0),
                            .stage = StageId(0),
                            .microbatch = MicrobatchId(m),
                            .writes = {SlotId(0)}});
    program.body.push_back({.op = program::Op::kSend,
                            .lane = LaneId(1),
                            .stage = StageId(0),
                            .microbatch = MicrobatchId(m),
                            .reads = {SlotId(0)}});
  }
  return program;
}

TEST(EngineOnStreams, ASlotIsWrittenAgainOnceTheStreamHasSentIt) {
  const Program program = SendingProgram();
  FakeCompute alone(1);
  std::vector<std::uint64_t> expected;
  for (StepId step(1); step.value() <= 4; ++step) {
    for (const Instruction& instruction : program.body) {
      if (instruction.op == program::Op::kSend) {
        expected.push_back(alone.slots[0]);
      } else {
        alone.Mix(instruction, step);
      }
    }
  }
  for (const bool computes_on_stream : {false, true}) {
    TaskStream computes(/*lazy=*/true), sends(/*lazy=*/true);
    StreamTransport link(sends);
    FakeDevice device(1);
    if (computes_on_stream) {
      for (const Instruction& instruction : program.body) device.streams[&instruction] = &computes;
    }
    const std::unique_ptr<Engine> engine =
        MakeEngine(program, device,
                   {.transport = &link, .rank_of = [](PpRank pp) { return Rank(pp.value()); }});
    ASSERT_TRUE(engine->Run(StepId(1), StepId(4), nullptr).ok());
    EXPECT_EQ(link.sent, expected);
  }
}

TEST(EngineOnStreams, AStepWhoseTransportFailedIsNotReported) {
  const Program program = SendingProgram();
  TaskStream sends(/*lazy=*/false);
  StreamTransport link(sends);
  FakeDevice device(1);
  device.fake.before = [&](const Instruction&, StepId step) {
    if (step == StepId(3)) link.failed = true;  // the streams may have done any part of it
    return absl::OkStatus();
  };
  std::int64_t reported = 0;
  const std::unique_ptr<Engine> engine = MakeEngine(
      program, device, {.transport = &link, .rank_of = [](PpRank pp) { return Rank(pp.value()); }});
  const absl::Status status =
      engine->Run(StepId(1), StepId(9), [&](const StepTiming&) { ++reported; });
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("a link broke"));
  EXPECT_LE(reported, 2);
}

TEST(EngineOnStreams, AnErrorOfTheDeviceNamesTheInstructionAndLeavesNothingRunning) {
  Program program;
  program.slots.resize(2);
  program.lanes.resize(2);
  for (int i = 0; i < 4; ++i) {
    program.body.push_back({.op = program::Op::kForward,
                            .lane = LaneId(i % 2),
                            .stage = StageId(0),
                            .microbatch = MicrobatchId(i),
                            .writes = {SlotId(i % 2)}});
  }
  TaskStream first(/*lazy=*/false), second(/*lazy=*/true);
  FakeDevice device(program.slots.size());
  for (const Instruction& instruction : program.body)
    device.streams[&instruction] = instruction.lane.value() == 0 ? &first : &second;
  std::atomic<int> runs = 0;
  device.fake.before = [&](const Instruction& instruction, StepId step) {
    ++runs;
    const bool fails = step == StepId(2) && instruction.microbatch == MicrobatchId(2);
    return fails ? absl::InternalError("the device fell off") : absl::OkStatus();
  };
  const std::unique_ptr<Engine> engine = MakeEngine(program, device);
  const absl::Status status = engine->Run(StepId(1), StepId(9), nullptr);
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()), HasSubstr("step 2"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("0F2"));
  const int before = runs;
  EXPECT_TRUE(second.Drain().ok());
  EXPECT_EQ(runs, before);
}

// One lane of a device and one of the host, which waits for what the device makes.
Program DeviceAndHost() {
  Program program;
  program.slots.resize(1);
  program.lanes.resize(2);
  for (int i = 0; i < 2; ++i) {
    program.body.push_back({.op = program::Op::kForward,
                            .lane = LaneId(i),
                            .stage = StageId(0),
                            .microbatch = MicrobatchId(i),
                            .reads = {SlotId(0)}});
  }
  program.body[0].writes = {SlotId(0)};
  return program;
}

TEST(EngineOnStreams, AnAbortEndsARunWhoseDeviceHangs) {
  const Program program = DeviceAndHost();
  absl::Notification hangs, goes_on;
  FakeDevice device(program.slots.size());
  TaskStream stream(/*lazy=*/false);  // destroyed first, because its work uses all of the above
  device.streams[&program.body[0]] = &stream;
  device.fake.before = [&](const Instruction&, StepId step) {
    if (step == StepId(2)) {
      hangs.Notify();
      goes_on.WaitForNotification();
    }
    return absl::OkStatus();
  };
  const std::unique_ptr<Engine> engine =
      MakeEngine(program, device, {.device_grace = absl::ZeroDuration()});
  absl::Status status;
  std::thread running([&] { status = engine->Run(StepId(1), StepId(9), nullptr); });
  hangs.WaitForNotification();
  engine->Abort(absl::CancelledError("told to stop"));
  running.join();
  EXPECT_EQ(status, absl::AbortedError("told to stop"));
  goes_on.Notify();
}

TEST(EngineOnStreams, AfterAnErrorADeviceFinishesWhatItWasGiven) {
  Program program = DeviceAndHost();
  program.body[1].reads = {};        // it waits for nothing
  TaskStream stream(/*lazy=*/true);  // it does nothing before a thread waits
  FakeDevice device(program.slots.size());
  device.streams[&program.body[0]] = &stream;
  std::atomic<bool> done = false;
  stream.Push([&] {
    done = true;
    return absl::OkStatus();
  });
  device.fake.before = [&](const Instruction& instruction, StepId) {
    const bool fails = instruction.lane == LaneId(1);
    return fails ? absl::InternalError("the host's part fails") : absl::OkStatus();
  };
  const std::unique_ptr<Engine> engine = MakeEngine(program, device);
  EXPECT_EQ(engine->Run(StepId(1), StepId(9), nullptr).code(), absl::StatusCode::kInternal);
  EXPECT_TRUE(done);
}

}  // namespace
}  // namespace takt::engine
