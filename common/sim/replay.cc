// SPDX-License-Identifier: Apache-2.0
#include "common/sim/replay.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/program/part_lists.h"
#include "common/sim/together.h"

namespace takt::sim {
namespace {

using program::Program;

// After two steps the state at the barrier is that of the step before, shifted. Without a barrier
// stages need some more steps to find their distance.
constexpr int kSteps = 4;

bool IsTime(double seconds) { return std::isfinite(seconds) && seconds >= 0; }

absl::Status CheckDurations(const std::vector<Program>& programs, const Durations& durations) {
  bool fits = durations.size() == programs.size();
  for (std::size_t rank = 0; fits && rank < programs.size(); ++rank) {
    fits = durations[rank].size() == programs[rank].body.size() &&
           std::ranges::all_of(durations[rank], IsTime);
  }
  if (fits) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "durations: one for each instruction of each rank, finite and not negative");
}

absl::Status CheckMeetings(const std::vector<Program>& programs, const ReplayOptions& options) {
  const auto together = static_cast<std::size_t>(options.tensor) * options.context;
  bool fits = options.tensor >= 1 && options.context >= 1 && programs.size() % together == 0;
  for (std::size_t rank = 0; fits && options.meetings != nullptr && rank < programs.size();
       ++rank) {
    fits = options.meetings->size() == programs.size() &&
           (*options.meetings)[rank].size() == NumMeetings(programs[rank]) &&
           std::ranges::all_of((*options.meetings)[rank], IsTime);
  }
  if (fits) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "meetings: one time for each meeting of each rank, finite and not negative");
}

double EndOf(const Machine& machine, const std::vector<Program>& programs, int step) {
  double end = 0;
  for (std::size_t rank = 0; rank < programs.size(); ++rank) {
    for (std::size_t i = 0; i < programs[rank].body.size(); ++i) {
      const auto instruction = static_cast<std::int32_t>(i);
      end = std::max(end, machine.At(step, static_cast<int>(rank), instruction).end);
    }
  }
  return end;
}

}  // namespace

std::vector<Program> SpreadOverCopies(const std::vector<Program>& programs, int num_copies) {
  std::vector<Program> spread;
  spread.reserve(programs.size() * num_copies);
  for (const Program& program : programs) {
    for (int copy = 0; copy < num_copies; ++copy) {
      const auto rank = [&](PpRank pp_rank) {
        return pp_rank.value() < 0 ? pp_rank : PpRank(pp_rank.value() * num_copies + copy);
      };
      Program& its = spread.emplace_back(program);
      its.pp_rank = rank(program.pp_rank);
      its.pp_size = program.pp_size * num_copies;
      its.mirror = rank(program.mirror);
      for (program::Lane& lane : its.lanes) lane.peer = rank(lane.peer);
    }
  }
  return spread;
}

absl::StatusOr<Replayed> Replay(const std::vector<Program>& programs, const Durations& durations,
                                const ReplayOptions& options) {
  RETURN_IF_ERROR(CheckTogether(programs));
  RETURN_IF_ERROR(CheckDurations(programs, durations));
  RETURN_IF_ERROR(CheckMeetings(programs, options));
  Machine machine(programs, {},
                  {.steps = kSteps,
                   .durations = &durations,
                   .meetings = options.meetings,
                   .tensor = options.tensor,
                   .context = options.context});
  if (const auto refusal = machine.Run()) return absl::InvalidArgumentError(refusal->reason);
  Replayed replayed;
  replayed.end_of_previous = EndOf(machine, programs, kSteps - 2);
  replayed.step_time = EndOf(machine, programs, kSteps - 1) - replayed.end_of_previous;
  for (std::size_t rank = 0; rank < programs.size(); ++rank) {
    std::vector<Machine::Span>& spans = replayed.spans.emplace_back();
    for (std::size_t i = 0; i < programs[rank].body.size(); ++i) {
      spans.push_back(machine.At(kSteps - 1, static_cast<int>(rank), static_cast<std::int32_t>(i)));
    }
  }
  return replayed;
}

}  // namespace takt::sim
