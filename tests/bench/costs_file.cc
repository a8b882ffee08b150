// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/costs_file.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/sim/executed.h"
#include "common/sim/simulate.h"

namespace takt::bench {
namespace {

using program::Op;

// Several steps are simulated in a row where a step overlaps its neighbours: without a flush, and
// without a barrier.
constexpr int kStepsInARow = 8;

// Returns the bytes of the activation that leaves each stage. 0: it stays on the rank.
std::vector<std::int64_t> OutputBytes(const plan::Plan& plan) {
  std::vector<std::int64_t> bytes(plan.partition.size(), 0);
  for (const program::Program& program : plan.programs) {
    for (const program::Instruction& instruction : program.body) {
      if (instruction.op != Op::kSend) continue;
      const program::Slot& slot = program.slots[instruction.reads[0].value()];
      if (slot.kind == program::SlotKind::kOutput) bytes[instruction.stage.value()] = slot.bytes;
    }
  }
  return bytes;
}

}  // namespace

absl::Status WriteCostsFile(const std::string& path, const MeasuredCosts& costs,
                            const plan::Plan& plan) {
  nlohmann::json stages = nlohmann::json::array();
  const std::vector<std::int64_t> output_bytes = OutputBytes(plan);
  for (const mesh::Stage& stage : plan.partition) {
    nlohmann::json& entry = stages.emplace_back();
    for (const Op kind : StageTimes::kKinds) {
      const double seconds = costs.stages.MeanSeconds(kind, stage.id);
      if (seconds > 0) entry[std::string(program::Name(kind))] = seconds;
    }
    entry["output_bytes"] = output_bytes[stage.id.value()];
  }
  const nlohmann::json file = {{"measured", costs.measured_on},
                               {"stages", stages},
                               {"tied_reduction", costs.tied_seconds},
                               {"optimizer", costs.optimizer_seconds}};
  std::ofstream out(path, std::ios::binary);
  out << file.dump(2) << '\n';
  out.close();
  if (out) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--costs ", path, ": cannot be written"));
}

absl::StatusOr<Prediction> Predict(const MeasuredCosts& costs, const plan::Plan& plan) {
  cost::Costs simulated = costs.stages.Costs();
  simulated.optimizer = {costs.optimizer_seconds};
  simulated.tied_reduction = costs.tied_seconds;
  const bool alone =
      !OverlapsSteps(plan) && std::ranges::none_of(plan.programs, program::IsAsynchronous);
  ASSIGN_OR_RETURN(
      const sim::Report report,
      sim::SimulateExecuted(plan.programs, simulated, {.steps = alone ? 1 : kStepsInARow}));
  return Prediction{.step_seconds = report.step_time,
                    .bubble_fraction = report.step_bubble_fraction};
}

}  // namespace takt::bench
