// SPDX-License-Identifier: Apache-2.0
#include "common/sim/executed.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "common/base/status.h"
#include "common/program/split_pairs.h"

namespace takt::sim {
namespace {

using Origins = std::vector<std::vector<std::int32_t>>;  // by rank: SplitProgram::origins

// Makes one event of the halves of each pair. Events of a rank are in the order of its compute
// lane, so halves are neighbours.
std::vector<Event> JoinHalves(const std::vector<Event>& events, const Origins& origins) {
  std::vector<Event> joined;
  for (Event event : events) {
    event.instruction = origins[static_cast<std::size_t>(event.pp_rank)]
                               [static_cast<std::size_t>(event.instruction)];
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

absl::StatusOr<Report> SimulateExecuted(const std::vector<program::Program>& programs,
                                        const cost::Costs& costs, const SimulateOptions& options) {
  const bool run_beside =
      costs.halves_run_beside && std::ranges::any_of(programs, program::PairsMeet);
  if (run_beside || std::ranges::none_of(programs, program::HasPairs))
    return Simulate(programs, costs, options);
  std::vector<program::Program> executed;
  Origins origins;
  for (const program::Program& program : programs) {
    program::SplitProgram split = program::SplitPairs(program);
    executed.push_back(std::move(split.program));
    origins.push_back(std::move(split.origins));
  }
  ASSIGN_OR_RETURN(Report report, Simulate(executed, costs, options));
  report.events = JoinHalves(report.events, origins);
  for (CriticalLink& link : report.critical_path) {
    link.instruction =
        origins[static_cast<std::size_t>(link.pp_rank)][static_cast<std::size_t>(link.instruction)];
  }
  return report;
}

}  // namespace takt::sim
