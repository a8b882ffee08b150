// SPDX-License-Identifier: Apache-2.0
#include "common/sim/timeline.h"

#include "absl/strings/str_format.h"

namespace takt::sim {
namespace {

schedule::ActionKind KindOf(program::Op op) {
  switch (op) {
    case program::Op::kInputGrad:
      return schedule::ActionKind::kInputGrad;
    case program::Op::kWeightGrad:
      return schedule::ActionKind::kWeightGrad;
    case program::Op::kBackward:
      return schedule::ActionKind::kBackward;
    default:
      return schedule::ActionKind::kForward;
  }
}

}  // namespace

schedule::Timeline MakeTimeline(const std::vector<program::Program>& programs,
                                const Report& report) {
  schedule::Timeline timeline;
  timeline.makespan = report.makespan;
  timeline.ranks.resize(programs.size());
  for (const Event& event : report.events) {
    const program::Instruction& instruction = programs[event.pp_rank].body[event.instruction];
    const auto add = [&](schedule::Action action) {
      timeline.ranks[event.pp_rank].push_back({action, event.start, event.end});
    };
    const bool pair = instruction.op == program::Op::kOverlap;
    add({instruction.stage, KindOf(instruction.op), instruction.microbatch, pair});
    if (pair) {
      add({instruction.backward_stage, schedule::ActionKind::kBackward,
           instruction.backward_microbatch});
    }
  }
  if (!programs.empty()) {
    timeline.title = absl::StrFormat(
        "%s: %d ranks, %d stages, %d microbatches, makespan %g, bubble %.2f%%",
        programs[0].schedule, programs.size(), programs[0].num_stages, programs[0].num_microbatches,
        report.makespan, 100 * report.bubble_fraction);
  }
  return timeline;
}

}  // namespace takt::sim
