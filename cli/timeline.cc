// SPDX-License-Identifier: Apache-2.0
#include "cli/timeline.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/text.h"
#include "common/base/status.h"
#include "common/program/lowering.h"
#include "common/schedule/validator.h"

namespace takt::cli {
namespace {

using schedule::Action;
using schedule::ActionKind;

std::optional<Action> ActionOf(const program::Instruction& instruction) {
  const auto make = [&](ActionKind kind) {
    return Action{.stage = instruction.stage, .kind = kind, .microbatch = instruction.microbatch};
  };
  switch (instruction.op) {
    case program::Op::kForward:
      return make(ActionKind::kForward);
    case program::Op::kInputGrad:
      return make(ActionKind::kInputGrad);
    case program::Op::kWeightGrad:
      return make(ActionKind::kWeightGrad);
    case program::Op::kBackward:
      return make(ActionKind::kBackward);
    default:
      return std::nullopt;
  }
}

double ShortestAction(const Timeline& timeline) {
  double shortest = timeline.report.makespan;
  for (const auto& rank : timeline.ranks) {
    for (const TimelineCell& cell : rank) {
      if (cell.end > cell.start) shortest = std::min(shortest, cell.end - cell.start);
    }
  }
  return shortest > 0 ? shortest : 1;
}

}  // namespace

absl::StatusOr<Timeline> MakeTimeline(const schedule::Schedule& schedule, const sim::Costs& costs) {
  RETURN_IF_ERROR(schedule::Validate(schedule));
  ASSIGN_OR_RETURN(const std::vector<program::Program> programs,
                   program::Lower(schedule, {.optimizer = false}));
  RETURN_IF_ERROR(sim::Prove(programs));
  Timeline timeline{.name = schedule.name};
  ASSIGN_OR_RETURN(timeline.report, sim::Simulate(programs, costs));
  timeline.ranks.resize(programs.size());
  for (const sim::Event& event : timeline.report.events) {
    const auto action = ActionOf(programs[event.pp_rank].body[event.instruction]);
    if (!action.has_value()) continue;
    timeline.ranks[event.pp_rank].push_back(
        {.action = *action, .start = event.start, .end = event.end});
  }
  return timeline;
}

std::string FormatGrid(const Timeline& timeline) {
  const double unit = ShortestAction(timeline);
  std::size_t width = 1;
  for (const auto& rank : timeline.ranks) {
    for (const TimelineCell& cell : rank) width = std::max(width, cell.action.ToString().size());
  }
  ++width;  // a blank between columns
  const auto column = [&](double time) {
    return static_cast<std::size_t>(std::llround(time / unit)) * width;
  };
  std::string text;
  for (std::size_t rank = 0; rank < timeline.ranks.size(); ++rank) {
    std::string line;
    for (const TimelineCell& cell : timeline.ranks[rank]) {
      const std::size_t start = std::max(column(cell.start), line.size());
      while (line.size() < start) {
        absl::StrAppend(&line, line.size() % width == 0 ? "." : " ");
      }
      const std::size_t end = std::max(column(cell.end), start + width);
      std::string label = cell.action.ToString();
      label.resize(end - start - 1, '-');
      absl::StrAppend(&line, label, " ");
    }
    line.erase(line.find_last_not_of(' ') + 1);
    absl::StrAppendFormat(&text, "rank %-3d %s\n", rank, line);
  }
  absl::StrAppendFormat(&text, "makespan %g, bubble %s; a column is %g\n", timeline.report.makespan,
                        FormatPercent(timeline.report.bubble_fraction), unit);
  return text;
}

}  // namespace takt::cli
