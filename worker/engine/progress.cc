// SPDX-License-Identifier: Apache-2.0
#include "worker/engine/progress.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/program/part_lists.h"
#include "worker/transport/wake_word.h"

namespace takt::engine {

using program::Instruction;
using transport::MonotonicNanos;

std::int64_t Progress::ArrivedNanos(const Lane& lane, std::uint64_t done) const {
  std::int64_t arrived = run_nanos;
  if (done > 0) {
    const std::uint64_t last = done - 1;
    const LaneEntry& entry = lane.entries[last % lane.length()];
    arrived = std::max(arrived, timings.Peek(last / lane.length(), entry.body_index).end_nanos);
  }
  // Before the instruction has begun, the start of an older iteration is stored there.
  const LaneEntry& entry = lane.entries[done % lane.length()];
  return std::max(arrived, timings.Peek(done / lane.length(), entry.body_index).start_nanos);
}

std::vector<LaneStatus> Progress::Status() const {
  std::vector<LaneStatus> result;
  const std::int64_t now = MonotonicNanos();
  for (const auto& lane : lanes) result.push_back(StatusOf(*lane, now));
  return result;
}

LaneStatus Progress::StatusOf(const Lane& lane, std::int64_t now) const {
  LaneStatus status{.lane = lane.id, .failed = lane.failed.load(std::memory_order_relaxed)};
  if (lane.entries.empty()) return status;
  const std::uint64_t done = lane.done.load(std::memory_order_acquire);
  const bool beside = lane.IsBeside(done % lane.length());
  const std::int32_t activity =
      (beside ? lane.side : lane.own).activity.load(std::memory_order_relaxed);
  const std::uint64_t current = activity == kIdle && done > 0 ? done - 1 : done;
  const LaneEntry& entry = lane.entries[current % lane.length()];
  status.step = StepOf(current / lane.length());
  status.instruction = program::ToString(*entry.instruction, program);
  // `done` may have changed between the two loads, so `activity` may not fit this entry.
  if (activity < static_cast<std::int32_t>(entry.waits.size())) {
    const int its_part =
        activity == kRunning ? PartUnderWay(entry, beside ? part_beside : part) : -1;
    if (its_part >= 0)
      absl::StrAppend(&status.instruction, " ", program::PartName(entry.parts, its_part));
    status.waiting_for = DescribeWait(program, lanes, entry, activity, its_part);
    if (activity >= 0) status.waits_for_lane = entry.waits[activity].lane;
    if (activity == kAwaitingNorm) status.waits_for_lane = NormCheckOf(program)->lane;
  }
  status.nanos = std::max<std::int64_t>(0, now - ArrivedNanos(lane, done));
  return status;
}

std::vector<DoneInstruction> Progress::LastDone(std::size_t most) const {
  struct Done {
    const Instruction* instruction;
    std::uint64_t iteration;
    InstructionTiming timing;
  };
  std::vector<Done> all;
  const std::int64_t now = MonotonicNanos();
  for (const auto& lane : lanes) {
    const std::uint64_t done = lane->done.load(std::memory_order_acquire);
    const std::uint64_t first = done - std::min<std::uint64_t>(done, most);
    for (std::uint64_t number = first; number < done; ++number) {
      const std::uint64_t iteration = number / lane->length();
      const LaneEntry& entry = lane->entries[number % lane->length()];
      const InstructionTiming timing = timings.Peek(iteration, entry.body_index);
      // A lane that has come this far may have overwritten these times with those of a later
      // iteration.
      const bool kept =
          lane->done.load(std::memory_order_acquire) < number + TimingRing::kKept * lane->length();
      if (kept) all.push_back({entry.instruction, iteration, timing});
    }
  }
  std::ranges::sort(all, {}, [](const Done& done) { return done.timing.end_nanos; });
  if (all.size() > most) all.erase(all.begin(), all.end() - static_cast<std::ptrdiff_t>(most));
  std::vector<DoneInstruction> result;
  for (const Done& done : all) {
    result.push_back({.instruction = program::ToString(*done.instruction, program),
                      .step = WorksFor(*done.instruction, StepOf(done.iteration)),
                      .nanos = done.timing.end_nanos - done.timing.start_nanos,
                      .ended_nanos_ago = std::max<std::int64_t>(0, now - done.timing.end_nanos)});
  }
  return result;
}

}  // namespace takt::engine
