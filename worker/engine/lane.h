// SPDX-License-Identifier: Apache-2.0
// One lane of a running program: its part of the body with all that running it needs, its progress,
// and what it is doing now.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/program/program.h"
#include "worker/engine/bound_instruction.h"
#include "worker/engine/device_part.h"
#include "worker/transport/transport.h"
#include "worker/transport/wake_word.h"

namespace takt::engine {

// One instruction of the body, with everything that running it needs.
struct LaneEntry {
  const program::Instruction* instruction = nullptr;
  std::int32_t body_index = 0;
  std::vector<program::Wait> waits;
  std::span<const program::Part> parts;  // of its instruction; empty: it has no meetings
  std::size_t first_meeting = 0;         // in program::MeetingOffsets
  std::size_t num_meetings = 0;
  std::unique_ptr<BoundInstruction> bound;  // BindProgram sets it
  // Set for the F of a pair whose B comes next and runs beside it. BindProgram sets it.
  bool with_next = false;
  std::unique_ptr<DevicePart> device;  // null: it and all that it waits for are the host's
};

// The step that an instruction works for while the engine is at `iteration_step`.
inline StepId WorksFor(const program::Instruction& instruction, StepId iteration_step) {
  return StepId(iteration_step.value() + instruction.step_ahead);
}

// What a lane is doing, besides its position.
enum LaneActivity : std::int32_t {
  kIdle = -1,       // before or after Run
  kRunning = -2,    // inside the instruction
  kReporting = -3,  // waits for the report of an earlier step
  kAwaitingDevice = -4,
  kAwaitingNorm = -5,  // waits for the instruction of NormCheckOf
  // 0 and above: waits for that entry of its `waits`.
};

// A waiter that waits for nothing has this count, which `done` never reaches.
inline constexpr std::uint64_t kNothingAwaited = std::numeric_limits<std::uint64_t>::max();

// A thread that waits for lanes.
struct Waiter {
  std::size_t index = 0;                  // in Lane::awaited
  alignas(64) transport::WakeWord woken;  // where it sleeps
  alignas(64) std::atomic<std::int32_t> activity{kIdle};
};

struct Lane {
  // Constant after construction.
  LaneId id;
  const program::Lane* description = nullptr;
  std::string name;  // "compute", "send F to 1"
  std::vector<LaneEntry> entries;
  std::unique_ptr<transport::SendChannel> send;
  std::unique_ptr<transport::RecvChannel> recv;

  // The lane's thread writes them, and all threads read them. `done` counts instructions over all
  // iterations: entry p of iteration i is done when done > i * entries.size() + p. An entry that
  // has a stream is done, in this sense, once it was given to the stream.
  alignas(64) std::atomic<std::uint64_t> done{0};
  // The count of `done` that each waiter waits for, by Waiter::index. Only the waiters whose count
  // is reached are woken. Others would use the cores just when this lane's result is to be sent.
  std::vector<std::atomic<std::uint64_t>> awaited;
  transport::WakeWord iteration_ended;  // wakes the report, which waits for whole iterations
  Waiter own, side;                     // the lane's thread, and that of the B of its pairs
  std::atomic<bool> failed{false};

  std::uint64_t length() const { return entries.size(); }
  // Returns whether an entry is the B of a pair and runs beside the F before it.
  bool IsBeside(std::uint64_t position) const {
    return position > 0 && entries[position - 1].with_next;
  }
};

// Returns where NORM_EXCHANGE is, for programs whose steps overlap: before it is done, no lane
// begins the next iteration.
std::optional<program::Wait> NormCheckOf(const program::Program& program);

// Makes the lanes of a program with entries and waits; channels and bound instructions come later.
// Errors: kInvalidArgument (the program names a lane or a slot that does not exist, or puts an
// instruction on a lane of another kind).
absl::StatusOr<std::vector<std::unique_ptr<Lane>>> MakeLanes(const program::Program& program);

// Returns the part of the entry's instruction that is under way, or -1. part: as
// PartCursor::current, which may be of another instruction by now.
int PartUnderWay(const LaneEntry& entry, int part);

// Returns what the lane waits for at `entry`, given its activity and the part that is under way;
// empty if it waits for nothing.
std::string DescribeWait(const program::Program& program,
                         const std::vector<std::unique_ptr<Lane>>& lanes, const LaneEntry& entry,
                         std::int32_t activity, int part);

}  // namespace takt::engine
