// SPDX-License-Identifier: Apache-2.0
// Simulates programs as engines run them, with the halves of overlapped pairs apart where engines
// run one after the other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "common/cost/costs.h"
#include "common/program/program.h"
#include "common/sim/machine.h"
#include "common/sim/simulate.h"

namespace takt::sim {

// Programs in which some pairs are an F and a B.
struct ExecutedPrograms {
  std::vector<program::Program> programs;
  std::vector<std::vector<std::int32_t>> origins;  // by rank: program::SplitProgram::origins

  // Returns whether the instruction is the F of a pair whose B comes next.
  bool BeginsPair(std::size_t rank, std::size_t instruction) const {
    const std::vector<std::int32_t>& of_rank = origins[rank];
    return instruction + 1 < of_rank.size() && of_rank[instruction] == of_rank[instruction + 1];
  }
};

// Splits the pairs whose halves engines run one after the other. halves_run_beside: as in
// cost::Costs; then pairs in which ranks meet stay whole.
ExecutedPrograms AsExecuted(const std::vector<program::Program>& programs, bool halves_run_beside);

// Returns durations for `executed`, given those of the programs before they were split.
// forward_share(rank, instruction): the F's share of the time of this pair.
Durations OfHalves(const ExecutedPrograms& executed, const Durations& durations,
                   absl::FunctionRef<double(std::size_t, std::size_t)> forward_share);

// Does as Simulate, but splits pairs as AsExecuted does. Their halves take as long as F and B do
// outside of pairs. Each half waits for its own input, and its SEND for this half alone. In the
// report a pair is one event, which ends with the B and lasts as long as both halves; a critical
// path may have both halves. Errors: those of Simulate.
absl::StatusOr<Report> SimulateExecuted(const std::vector<program::Program>& programs,
                                        const cost::Costs& costs,
                                        const SimulateOptions& options = {});

}  // namespace takt::sim
