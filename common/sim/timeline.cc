// SPDX-License-Identifier: Apache-2.0
#include "common/sim/timeline.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_format.h"
#include "common/base/counted.h"

namespace takt::sim {

schedule::ActionKind KindOf(program::Op op) {
  switch (op) {
    case program::Op::kInputGrad:
      return schedule::ActionKind::kInputGrad;
    case program::Op::kWeightGrad:
      return schedule::ActionKind::kWeightGrad;
    case program::Op::kBackward:
      return schedule::ActionKind::kBackward;
    case program::Op::kVocabularyForward:
      return schedule::ActionKind::kVocabularyForward;
    case program::Op::kVocabularyBackward:
    case program::Op::kLoss:
      return schedule::ActionKind::kVocabularyBackward;
    default:
      return schedule::ActionKind::kForward;
  }
}

namespace {

// Without a flush a step has no makespan of its own. The title then gives the time of one step in a
// row of steps.
std::string Title(const std::vector<program::Program>& programs, const Report& report) {
  const bool flushes = std::ranges::none_of(programs, program::IsAsynchronous);
  return absl::StrFormat(
      "%s: %s, %s, %s, %s %g, bubble %.2f%%", programs[0].schedule,
      Counted(std::ssize(programs), "rank"), Counted(programs[0].num_stages, "stage"),
      Counted(programs[0].num_microbatches, "microbatch"),
      flushes ? "makespan" : "no flush, step time", flushes ? report.makespan : report.step_time,
      100 * (flushes ? report.bubble_fraction : report.step_bubble_fraction));
}

// A W of several microbatches appears as so many of equal length.
void AddEach(const program::Instruction& weight_grad, const Event& event,
             std::vector<schedule::TimedAction>& row) {
  const double each = (event.end - event.start) / weight_grad.num_microbatches;
  for (std::int32_t i = 0; i < weight_grad.num_microbatches; ++i) {
    const MicrobatchId m(weight_grad.microbatch.value() + i);
    row.push_back({{weight_grad.stage, schedule::ActionKind::kWeightGrad, m},
                   event.start + i * each,
                   event.start + (i + 1) * each});
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
    if (instruction.num_microbatches > 1) {
      AddEach(instruction, event, timeline.ranks[event.pp_rank]);
      continue;
    }
    add({instruction.stage, KindOf(instruction.op), instruction.microbatch, pair});
    if (pair) {
      add({instruction.backward_stage, schedule::ActionKind::kBackward,
           instruction.backward_microbatch});
    }
  }
  if (!programs.empty()) timeline.title = Title(programs, report);
  return timeline;
}

}  // namespace takt::sim
