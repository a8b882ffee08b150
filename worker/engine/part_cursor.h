// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <span>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "common/program/program.h"
#include "worker/backend/stream.h"
#include "worker/engine/instruction_timing.h"
#include "worker/engine/pair_turns.h"

namespace takt::engine {

// Tell when a meeting that was left on a stream began and ended.
struct MeetingEvents {
  std::unique_ptr<backend::Event> start, end;
};

// One run of an instruction that has parts. Everything is borrowed until PartCursor::End.
struct PartRun {
  std::span<const program::Part> parts;
  // They get the times of its meetings, in order. Empty: these are not timed.
  std::span<InstructionTiming> times;
  // Null: a meeting is over when its call returns. Else it is left on the stream, and `events`, one
  // for each meeting, tell when it ran.
  backend::Stream* stream = nullptr;
  std::span<const MeetingEvents> events;
  // Set for the halves of a pair that run side by side. The time of a meeting is then only its last
  // part, in which neither half computed.
  PairTurns* turns = nullptr;
  PairHalf half = PairHalf::kForward;
};

// Follows the parts of the instruction that the compute lane runs: it holds their order, times both
// ends of each meeting, and knows which one is under way. Whatever computes owns it; several
// engines may use it, one at a time. A second one follows the B of pairs that run beside their F.
// Thread class: only the thread that runs the instruction, except `current`.
class PartCursor {
 public:
  // Layers run each of their meetings by this, in the order of the instruction's list. Outside of
  // Begin and End, or if the instruction has no parts, it only runs the meeting.
  // Errors: kInternal (the list has another meeting here, or none), and those of `meeting`.
  absl::Status Meet(program::PartKind kind, program::PartGroup group,
                    absl::FunctionRef<absl::Status()> meeting);

  // The engine calls these around each instruction that has parts. End reports kInternal if a
  // meeting was left out. After an error of a meeting `current` stays at it until the next Begin.
  void Begin(const PartRun& run);
  absl::Status End();

  // Returns the number of the meeting that is under way in the list of its instruction; -1: none.
  // Any thread may call it.
  int current() const { return current_.load(std::memory_order_relaxed); }

 private:
  absl::Status RunTimed(absl::FunctionRef<absl::Status()> meeting);

  PartRun run_;
  std::size_t next_ = 0;     // part
  std::size_t num_met_ = 0;  // meetings
  std::atomic<int> current_{-1};
};

}  // namespace takt::engine
