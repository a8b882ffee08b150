// SPDX-License-Identifier: Apache-2.0
// Holds all measurements of some steps of one job, with what a reader needs to understand them.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/id.h"
#include "common/cost/costs.h"
#include "common/mesh/mesh.h"
#include "common/program/program.h"
#include "common/trace/step_trace.h"

namespace takt::trace {

// Added to the times of a host, this gives those of the coordinator, give or take error_nanos.
struct ClockOffset {
  std::int64_t offset_nanos = 0;
  std::int64_t error_nanos = 0;
};

struct RankTrace {
  ClockOffset clock;
  std::vector<StepTrace> steps;  // ascending; all ranks have the same ones
};

struct JobTrace {
  std::string job;
  Generation generation;
  mesh::Mesh mesh;
  std::vector<program::Program> programs;  // by pp rank
  std::vector<RankTrace> ranks;            // by rank
  cost::Costs predicted;                   // seconds, as the plan had them
  std::vector<double> layer_work;          // of each layer of the model, in one unit; may be empty

  int num_ranks() const { return static_cast<int>(ranks.size()); }
  int num_steps() const { return ranks.empty() ? 0 : static_cast<int>(ranks[0].steps.size()); }
  const program::Program& ProgramOf(int rank) const {
    return programs[mesh.PpRankOf(Rank(rank)).value()];
  }
};

// Returns whether a step can be a step of the program.
bool Fits(const StepTrace& step, const program::Program& program);

// kInvalidArgument: programs do not belong together, ranks or instructions are missing, ranks do
// not have the same steps in ascending order, or a span ends before it starts.
absl::Status CheckJobTrace(const JobTrace& trace);

}  // namespace takt::trace
