// SPDX-License-Identifier: Apache-2.0
#include "worker/engine/part_cursor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "common/program/lowering.h"
#include "common/program/part_lists.h"
#include "common/schedule/generate.h"
#include "worker/backend/discrete/task_stream.h"
#include "worker/engine/engine_testing.h"

namespace takt::engine {
namespace {

using program::Instruction;
using program::Part;
using program::PartGroup;
using program::PartKind;
using program::Program;
using ::testing::HasSubstr;

constexpr Part kCompute{};
constexpr Part kGather = {PartKind::kGather, PartGroup::kTensor};
constexpr Part kScatter = {PartKind::kScatter, PartGroup::kContext};

// One stage and two microbatches, in whose F ranks gather, compute and scatter.
Program TwoForwards() {
  const auto schedule = schedule::Generate("gpipe", {.num_ranks = 1, .num_microbatches = 2});
  return program::Lower(*schedule,
                        {.stages = {{.layers = {{.forward = {kGather, kCompute, kScatter}}}}}})
      .value()[0];
}

// Comes to the meetings of every instruction, and does nothing else.
class MeetingCompute final : public Compute {
 public:
  explicit MeetingCompute(const Program& program) : program_(program) {}

  Bound Bind(const Instruction& instruction) override {
    const program::Lane& lane = program_.lanes[instruction.lane.value()];
    const bool computes = lane.kind == program::LaneKind::kCompute;
    return MakeBound(computes ? stream : nullptr,
                     [this, &instruction](StepId step) -> absl::Status {
                       for (const Part& part : PartListOf(instruction, program_)) {
                         if (!part.meets()) continue;
                         const absl::Status status = cursor_.Meet(part.kind, part.group, [&] {
                           return meet ? meet(instruction, part, step) : absl::OkStatus();
                         });
                         if (!status.ok()) return status;
                       }
                       return absl::OkStatus();
                     });
  }
  std::span<std::byte> SlotBytes(SlotId) override { return {}; }
  PartCursor* part_cursor() override { return &cursor_; }

  std::function<absl::Status(const Instruction&, const Part&, StepId)> meet;
  backend::Stream* stream = nullptr;

 private:
  const Program& program_;
  PartCursor cursor_;
};

TEST(PartCursor, RefusesAnotherMeetingThanTheListHas) {
  const std::vector<Part> parts = {kCompute, kGather, kCompute, kScatter};
  const auto meet = [] { return absl::OkStatus(); };
  PartCursor cursor;
  EXPECT_TRUE(cursor.Meet(PartKind::kExchange, PartGroup::kTensor, meet).ok());  // nobody follows
  cursor.Begin({.parts = parts});
  EXPECT_THAT(std::string(cursor.Meet(PartKind::kScatter, PartGroup::kContext, meet).message()),
              HasSubstr("come to a scatter where its list of parts has gather(1)"));
  EXPECT_FALSE(cursor.Meet(PartKind::kGather, PartGroup::kContext, meet).ok());
  EXPECT_TRUE(cursor.Meet(PartKind::kGather, PartGroup::kTensor, meet).ok());
  EXPECT_THAT(std::string(cursor.End().message()), HasSubstr("scatter(3), to which the rank"));
  cursor.Begin({.parts = parts});
  EXPECT_TRUE(cursor.Meet(PartKind::kGather, PartGroup::kTensor, meet).ok());
  EXPECT_TRUE(cursor.Meet(PartKind::kScatter, PartGroup::kContext, meet).ok());
  EXPECT_THAT(std::string(cursor.Meet(PartKind::kGather, PartGroup::kTensor, meet).message()),
              HasSubstr("meet once more than its list"));
  EXPECT_TRUE(cursor.End().ok());
}

TEST(PartCursor, KnowsTheMeetingThatIsUnderWay) {
  const std::vector<Part> parts = {kCompute, kGather};
  PartCursor cursor;
  cursor.Begin({.parts = parts});
  EXPECT_EQ(cursor.current(), -1);
  const absl::Status lost = cursor.Meet(PartKind::kGather, PartGroup::kTensor, [&] {
    EXPECT_EQ(cursor.current(), 1);
    return absl::UnavailableError("rank 3 is gone");
  });
  EXPECT_EQ(lost.message(), "rank 3 is gone");
  EXPECT_TRUE(cursor.End().ok());
  EXPECT_EQ(cursor.current(), 1);  // for whoever names what went wrong
  cursor.Begin({.parts = parts});
  EXPECT_EQ(cursor.current(), -1);
}

TEST(EngineWithParts, TimesBothEndsOfEachMeeting) {
  const Program program = TwoForwards();
  MeetingCompute compute(program);
  const auto engine = MakeEngine(program, compute);
  const std::vector<std::size_t> offsets = MeetingOffsets(program);
  int reported = 0;
  const auto on_step = [&](const StepTiming& timing) {
    ++reported;
    ASSERT_EQ(timing.meetings->size(), 4u);
    std::int64_t compute_nanos = 0;
    for (std::size_t i = 0; i < program.body.size(); ++i) {
      const InstructionTiming& whole = (*timing.timings)[i];
      std::int64_t after = whole.start_nanos;
      std::int64_t in_meetings = 0;
      for (std::size_t m = offsets[i]; m < offsets[i + 1]; ++m) {
        const InstructionTiming& meeting = (*timing.meetings)[m];
        EXPECT_LE(after, meeting.start_nanos);
        EXPECT_LE(meeting.start_nanos, meeting.end_nanos);
        after = meeting.end_nanos;
        in_meetings += meeting.end_nanos - meeting.start_nanos;
      }
      EXPECT_LE(after, whole.end_nanos);
      if (program::IsCompute(program.body[i].op))
        compute_nanos += whole.end_nanos - whole.start_nanos - in_meetings;
    }
    EXPECT_EQ(timing.compute_nanos, compute_nanos);
  };
  ASSERT_TRUE(engine->Run(StepId(1), StepId(3), on_step).ok());
  EXPECT_EQ(reported, 3);
}

TEST(EngineWithParts, MeetingsOnAStreamAreTimedByItsEvents) {
  const Program program = TwoForwards();
  backend::TaskStream stream(/*lazy=*/true);
  MeetingCompute compute(program);
  compute.stream = &stream;
  std::vector<int> done;
  compute.meet = [&](const Instruction& instruction, const Part&, StepId) {
    stream.Push([&done, microbatch = instruction.microbatch.value()] {
      done.push_back(microbatch);
      return absl::OkStatus();
    });
    return absl::OkStatus();
  };
  const auto engine = MakeEngine(program, compute);
  const auto on_step = [&](const StepTiming& timing) {
    std::int64_t after = 0;
    for (const InstructionTiming& meeting : *timing.meetings) {
      EXPECT_LE(after, meeting.start_nanos);
      EXPECT_LE(meeting.start_nanos, meeting.end_nanos);
      after = meeting.end_nanos;
    }
  };
  ASSERT_TRUE(engine->Run(StepId(1), StepId(2), on_step).ok());
  EXPECT_EQ(done, (std::vector<int>{0, 0, 1, 1, 0, 0, 1, 1}));
}

TEST(EngineWithParts, AnErrorNamesThePart) {
  const Program program = TwoForwards();
  MeetingCompute compute(program);
  compute.meet = [](const Instruction& instruction, const Part& part, StepId step) {
    const bool fails = step == StepId(2) && instruction.microbatch == MicrobatchId(1) &&
                       part.kind == PartKind::kScatter;
    return fails ? absl::UnavailableError("rank 3 is gone") : absl::OkStatus();
  };
  const auto engine = MakeEngine(program, compute);
  const absl::Status status = engine->Run(StepId(1), StepId(3), nullptr);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("step 2, pp rank 0, 0F1 scatter(2): rank 3 is gone"));
}

TEST(EngineWithParts, AHangShowsThePartInStatus) {
  const Program program = TwoForwards();
  MeetingCompute compute(program);
  absl::Notification hanging, release;
  compute.meet = [&](const Instruction& instruction, const Part& part, StepId) {
    if (instruction.microbatch == MicrobatchId(1) && part.kind == PartKind::kGather) {
      hanging.Notify();
      release.WaitForNotification();
    }
    return absl::OkStatus();
  };
  const auto engine = MakeEngine(program, compute);
  std::thread runner([&] { engine->Run(StepId(1), StepId(1), nullptr).IgnoreError(); });
  hanging.WaitForNotification();
  const auto forward = std::ranges::find(program.body, program::Op::kForward, &Instruction::op);
  const LaneStatus computing = engine->Status()[forward->lane.value()];
  EXPECT_EQ(computing.instruction, "0F1 gather(0)");
  EXPECT_EQ(computing.waiting_for, "gather(0) with the other ranks that share its layers");
  release.Notify();
  runner.join();
}

TEST(EngineWithParts, RefusesComputeThatCannotFollowThem) {
  const Program program = TwoForwards();
  FakeCompute compute(program.slots.size());
  EXPECT_EQ(Engine::Create(program, compute, {}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace takt::engine
