// SPDX-License-Identifier: Apache-2.0
#include "common/sim/executed.h"

#include <algorithm>
#include <utility>

#include "common/base/status.h"
#include "common/program/split_pairs.h"

namespace takt::sim {
namespace {

std::int32_t Origin(const ExecutedPrograms& executed, int rank, std::int32_t instruction) {
  return executed.origins[static_cast<std::size_t>(rank)][static_cast<std::size_t>(instruction)];
}

// Makes one event of the halves of each pair. Events of a rank are in the order of its compute
// lane, so halves are neighbours.
std::vector<Event> JoinHalves(const ExecutedPrograms& executed, const std::vector<Event>& events) {
  std::vector<Event> joined;
  for (Event event : events) {
    event.instruction = Origin(executed, event.pp_rank, event.instruction);
    Event* const before = joined.empty() ? nullptr : &joined.back();
    if (before == nullptr || before->pp_rank != event.pp_rank ||
        before->instruction != event.instruction) {
      joined.push_back(event);
      continue;
    }
    // What lies between the halves counts as if it were before the pair, as in measured steps.
    before->start += event.start - before->end;
    before->end = event.end;
  }
  return joined;
}

}  // namespace

ExecutedPrograms AsExecuted(const std::vector<program::Program>& programs, bool halves_run_beside) {
  ExecutedPrograms executed;
  for (const program::Program& program : programs) {
    program::SplitProgram split = program::SplitPairs(
        program, halves_run_beside ? program::Pairs::kWithoutMeetings : program::Pairs::kAll);
    executed.programs.push_back(std::move(split.program));
    executed.origins.push_back(std::move(split.origins));
  }
  return executed;
}

Durations OfHalves(const ExecutedPrograms& executed, const Durations& durations,
                   absl::FunctionRef<double(std::size_t, std::size_t)> forward_share) {
  Durations halves(executed.programs.size());
  for (std::size_t rank = 0; rank < executed.programs.size(); ++rank) {
    for (std::size_t i = 0; i < executed.origins[rank].size(); ++i) {
      const auto origin = static_cast<std::size_t>(executed.origins[rank][i]);
      double share = 1;
      if (executed.BeginsPair(rank, i)) {
        share = forward_share(rank, origin);
      } else if (i > 0 && executed.BeginsPair(rank, i - 1)) {
        share = 1 - forward_share(rank, origin);
      }
      halves[rank].push_back(share * durations[rank][origin]);
    }
  }
  return halves;
}

absl::StatusOr<Report> SimulateExecuted(const std::vector<program::Program>& programs,
                                        const cost::Costs& costs, const SimulateOptions& options) {
  if (std::ranges::none_of(programs, program::HasPairs)) return Simulate(programs, costs, options);
  const ExecutedPrograms executed = AsExecuted(programs, costs.halves_run_beside);
  ASSIGN_OR_RETURN(Report report, Simulate(executed.programs, costs, options));
  report.events = JoinHalves(executed, report.events);
  for (CriticalLink& link : report.critical_path)
    link.instruction = Origin(executed, link.pp_rank, link.instruction);
  return report;
}

}  // namespace takt::sim
