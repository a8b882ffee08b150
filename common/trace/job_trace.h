// SPDX-License-Identifier: Apache-2.0
// Everything that was measured of some steps of one job, with what is needed to read it.
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

// What to add to the times of a host to have those of the coordinator, and how wrong that can be.
struct ClockOffset {
  std::int64_t offset_nanos = 0;
  std::int64_t error_nanos = 0;
};

struct RankTrace {
  ClockOffset clock;
  std::vector<StepTrace> steps;  // ascending; of all ranks the same ones
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

// Whether a step can be one of the program's.
bool Fits(const StepTrace& step, const program::Program& program);

// kInvalidArgument: programs that do not belong together, ranks or instructions that are missing,
// steps that are not the same ones in ascending order, spans that end before they start.
absl::Status CheckJobTrace(const JobTrace& trace);

}  // namespace takt::trace
