// SPDX-License-Identifier: Apache-2.0
// Tests the halves of an O. They run in turns on two threads where ranks meet inside them, and
// otherwise one after the other.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "common/program/lowering.h"
#include "common/program/part_lists.h"
#include "common/schedule/text.h"
#include "worker/engine/engine_testing.h"
#include "worker/engine/pair_turns.h"
#include "worker/engine/step_times.h"

namespace takt::engine {
namespace {

using program::Instruction;
using program::Part;
using program::PartGroup;
using program::PartKind;
using program::Program;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr Part kCompute{};
constexpr Part kGather = {PartKind::kGather, PartGroup::kTensor};

// One stage, whose F and I gather before they compute.
Program OnePair(bool meet) {
  const auto schedule = schedule::ParseCsv("0F0,(0F1;0B0)OVERLAP_F_B,0B1\n", "pair.csv").value();
  program::LowerOptions options{.stages = {{}}};
  if (meet)
    options.stages[0].layers = {
        {.forward = {kGather, kCompute}, .input_grad = {kGather, kCompute}}};
  return program::Lower(schedule, options).value()[0];
}

class PairCompute final : public Compute {
 public:
  explicit PairCompute(const Program& program) : program_(program) {}

  Bound Bind(const Instruction& instruction) override { return BindTo(instruction, cursor_); }
  Bound BindBeside(const Instruction& backward) override { return BindTo(backward, side_cursor_); }
  std::span<std::byte> SlotBytes(SlotId) override { return {}; }
  PartCursor* part_cursor() override { return &cursor_; }
  Beside beside() override { return {.turns = &turns_, .cursor = &side_cursor_}; }

  // Called inside each meeting, with what meets: "0F1".
  std::function<absl::Status(const std::string&)> meet = [](const std::string&) {
    return absl::OkStatus();
  };
  std::mutex mutex;
  std::vector<std::string> ran;  // guarded by `mutex`

 private:
  Bound BindTo(const Instruction& instruction, PartCursor& cursor) {
    const bool meets = !PartListOf(instruction, program_).empty();
    return MakeBound(
        nullptr,
        [this, name = ToString(instruction, program_), meets, &cursor](StepId) -> absl::Status {
          if (meets) {
            const absl::Status status =
                cursor.Meet(PartKind::kGather, PartGroup::kTensor, [&] { return meet(name); });
            if (!status.ok()) return status;
          }
          const std::lock_guard lock(mutex);
          ran.push_back(name);
          return absl::OkStatus();
        });
  }

  const Program& program_;
  PartCursor cursor_, side_cursor_;
  PairTurns turns_;
};

TEST(PairTurns, GoToTheHalfThatIsBehind) {
  PairTurns turns;
  const auto take = [&](PairHalf half) {  // would never return if the other half went first
    const PairTurn turn(&turns, half);
  };
  take(PairHalf::kForward);  // outside of pairs
  turns.Begin(PairHalf::kForward, 2);
  turns.Begin(PairHalf::kBackward, 4);
  take(PairHalf::kBackward);
  turns.BeginMeeting(PairHalf::kBackward);
  take(PairHalf::kForward);
  turns.EndMeeting(PairHalf::kBackward);
  take(PairHalf::kForward);  // has met 0 times of 2, the other one 1 time of 4
  turns.BeginMeeting(PairHalf::kForward);
  take(PairHalf::kBackward);
  turns.EndMeeting(PairHalf::kForward);
  take(PairHalf::kBackward);
  turns.End(PairHalf::kBackward);
  take(PairHalf::kForward);
}

TEST(PairTurns, KnowInWhichTimeNeitherHalfComputes) {
  PairTurns turns;
  turns.Begin(PairHalf::kForward, 3);
  turns.Begin(PairHalf::kBackward, 1);
  turns.BeginMeeting(PairHalf::kForward);
  EXPECT_FALSE(turns.EndMeeting(PairHalf::kForward).has_value());
  turns.BeginMeeting(PairHalf::kForward);
  turns.BeginMeeting(PairHalf::kBackward);
  EXPECT_TRUE(turns.EndMeeting(PairHalf::kBackward).has_value());
  EXPECT_FALSE(turns.EndMeeting(PairHalf::kForward).has_value());
  turns.BeginMeeting(PairHalf::kForward);
  turns.End(PairHalf::kBackward);
  EXPECT_TRUE(turns.EndMeeting(PairHalf::kForward).has_value());
}

TEST(EngineWithPairs, RunsOneHalfWhileTheOtherOneMeets) {
  const Program program = OnePair(/*meet=*/true);
  PairCompute compute(program);
  absl::Notification forward, backward;
  compute.meet = [&](const std::string& name) -> absl::Status {
    if (name != "0F1" && name != "0B0") return absl::OkStatus();
    const bool is_forward = name == "0F1";
    (is_forward ? forward : backward).Notify();
    const bool met =
        (is_forward ? backward : forward).WaitForNotificationWithTimeout(absl::Seconds(60));
    return met ? absl::OkStatus() : absl::InternalError("the other half did not run meanwhile");
  };
  std::size_t reported = 0, meetings = 0;
  const absl::Status status =
      MakeEngine(program, compute)->Run(StepId(1), StepId(1), [&](const StepTiming& timing) {
        reported = timing.timings->size();
        meetings = timing.meetings->size();
        for (std::size_t i = 0; i < program.body.size(); ++i) {
          const InstructionTiming& each = (*timing.timings)[i];
          EXPECT_GT(each.start_nanos, 0);
          EXPECT_GE(each.end_nanos, each.start_nanos);
        }
      });
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(reported, program.body.size());
  EXPECT_EQ(meetings, NumMeetings(program));
}

TEST(EngineWithPairs, RunsThemOneAfterTheOtherWhereNobodyMeets) {
  const Program program = OnePair(/*meet=*/false);
  PairCompute compute(program);
  ASSERT_TRUE(MakeEngine(program, compute)->Run(StepId(1), StepId(1), {}).ok());
  std::erase_if(compute.ran, [](const std::string& name) { return name[0] != '0'; });
  EXPECT_THAT(compute.ran, ElementsAre("0F0", "0F1", "0B0", "0B1"));
}

TEST(EngineWithPairs, NamesTheHalfThatFails) {
  for (const std::string lost : {"0F1", "0B0"}) {
    const Program program = OnePair(/*meet=*/true);
    PairCompute compute(program);
    compute.meet = [&](const std::string& name) {
      return name == lost ? absl::UnavailableError("rank 1 is gone") : absl::OkStatus();
    };
    const absl::Status status = MakeEngine(program, compute)->Run(StepId(1), StepId(9), {});
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(status.message()), HasSubstr(lost + " gather(0)"));
  }
}

// The F takes 10 to 30 and the B 50 to 60, because its gradient came late.
TEST(StepTimes, CountAPairWithoutTheTimeInWhichNoHalfRan) {
  const Program program = OnePair(/*meet=*/false);
  const auto pair = std::ranges::find(program.body, program::Op::kOverlap, &Instruction::op);
  std::vector<std::int32_t> origins;
  std::vector<InstructionTiming> timings;
  for (std::size_t i = 0; i < program.body.size(); ++i) {
    const bool is_pair = program.body.begin() + static_cast<std::ptrdiff_t>(i) == pair;
    origins.push_back(static_cast<std::int32_t>(i));
    timings.push_back(is_pair ? InstructionTiming{10, 30} : InstructionTiming{60, 60});
    if (!is_pair) continue;
    origins.push_back(origins.back());
    timings.push_back({50, 60});
  }
  StepTimes times(program, origins);
  const StepTiming step = times.Summarize(StepId(1), timings, /*meetings=*/{}, /*previous_end=*/1);
  ASSERT_EQ(step.timings->size(), program.body.size());
  const InstructionTiming& joined =
      (*step.timings)[static_cast<std::size_t>(pair - program.body.begin())];
  EXPECT_EQ(joined.start_nanos, 30);
  EXPECT_EQ(joined.end_nanos, 60);
  EXPECT_EQ(step.compute_nanos, 30);
}

}  // namespace
}  // namespace takt::engine
