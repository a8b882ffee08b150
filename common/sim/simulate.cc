// SPDX-License-Identifier: Apache-2.0
#include "common/sim/simulate.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/sim/critical_path.h"
#include "common/sim/machine.h"
#include "common/sim/occupancy.h"
#include "common/sim/together.h"

namespace takt::sim {
namespace {

using program::Instruction;
using program::Op;
using program::Program;

absl::Status CheckSteps(const SimulateOptions& options) {
  if (options.steps >= 1) return absl::OkStatus();
  return InvalidField({.field = "steps",
                       .value = absl::StrCat(options.steps),
                       .rule = "must be at least 1",
                       .fix = "simulate one step, or two or more to see them follow each other"});
}

// Returns whether a step lasts until this has ended. An instruction that takes no time counts for
// those that wait for it.
bool IsWork(int rank, const Instruction& instruction, const Machine& machine) {
  return program::IsCompute(instruction.op) || machine.Duration(rank, instruction) > 0 ||
         machine.MeetingSeconds(rank, instruction) > 0;
}

// Returns the work of one step that ends last, on the lowest rank where several do.
Machine::Place LastWork(const std::vector<Program>& programs, const Machine& machine, int step) {
  Machine::Place last;
  double latest = -1;
  for (const Program& program : programs) {
    const int rank = program.pp_rank.value();
    for (std::int32_t i = 0; i < static_cast<std::int32_t>(program.body.size()); ++i) {
      const double end = machine.At(step, rank, i).end;
      if (end <= latest || !IsWork(rank, program.body[i], machine)) continue;
      last = {rank, i};
      latest = end;
    }
  }
  return last;
}

// Returns the compute instructions of a rank, which are its row of a timeline.
std::vector<Event> ComputeEvents(const Program& program, const Machine& machine) {
  const int rank = program.pp_rank.value();
  std::vector<Event> events;
  for (std::int32_t i = 0; i < static_cast<std::int32_t>(program.body.size()); ++i) {
    if (!program::IsCompute(program.body[i].op)) continue;
    const Machine::Span& span = machine.At(0, rank, i);
    events.push_back({rank, i, span.start, span.end});
  }
  return events;
}

// Returns whether a compute op counts as forward, and whether as backward. An O is both, and what
// a rank does with its part of the vocabulary is neither.
bool RunsForward(Op op) { return op == Op::kForward || op == Op::kOverlap; }
bool RunsBackward(Op op) {
  return op == Op::kInputGrad || op == Op::kWeightGrad || op == Op::kBackward || op == Op::kOverlap;
}

// events: the rank's, in order.
void SplitIdle(const Program& program, const std::vector<Event>& events, double makespan,
               RankReport& report) {
  if (events.empty()) {
    report.warmup_idle = makespan;
    return;
  }
  double first_backward = makespan;
  double last_forward = 0;
  for (const Event& event : events) {
    const Op op = program.body[event.instruction].op;
    if (RunsForward(op)) last_forward = event.end;
    if (RunsBackward(op)) first_backward = std::min(first_backward, event.start);
  }
  report.warmup_idle = events.front().start;
  report.cooldown_idle = makespan - events.back().end;
  for (std::size_t i = 1; i < events.size(); ++i) {
    const double begin = events[i - 1].end, end = events[i].start;
    const bool steady = begin >= first_backward && end <= last_forward;
    (steady ? report.steady_idle : report.internal_idle) += end - begin;
  }
}

}  // namespace

std::string_view Name(CriticalLink::After after) {
  constexpr std::string_view kNames[] = {"nothing", "same rank", "message", "reduction",
                                         "optimizer"};
  return kNames[static_cast<int>(after)];
}

int Report::peak_in_flight() const {
  const auto most = std::ranges::max_element(ranks, {}, &RankReport::peak_in_flight);
  return most == ranks.end() ? 0 : most->peak_in_flight;
}

absl::StatusOr<Report> Simulate(const std::vector<Program>& programs, const cost::Costs& costs,
                                const SimulateOptions& options) {
  RETURN_IF_ERROR(CheckTogether(programs));
  RETURN_IF_ERROR(cost::CheckCosts(costs, programs[0].num_stages));
  RETURN_IF_ERROR(cost::CheckCostsByRank(costs, static_cast<int>(programs.size())));
  RETURN_IF_ERROR(CheckSteps(options));
  Machine machine(programs, costs, {.steps = options.steps, .barrier = options.barrier});
  if (const auto refusal = machine.Run()) return absl::InvalidArgumentError(refusal->reason);

  Report report;
  const auto end_of_step = [&](int step) {
    const Machine::Place last = LastWork(programs, machine, step);
    return machine.At(step, last.rank, last.instruction).end;
  };
  const Machine::Place last = LastWork(programs, machine, 0);
  report.makespan = machine.At(0, last.rank, last.instruction).end;
  // Where steps overlap, nothing ran ahead of the first one, and the next ones still differ for it.
  const int begin = program::OverlapsSteps(programs.front()) ? options.steps / 2 : 0;
  const int end = options.steps - 1;
  report.step_time =
      begin >= end ? report.makespan : (end_of_step(end) - end_of_step(begin)) / (end - begin);
  report.critical_path = FindCriticalPath(programs, machine, last);
  double longest_span = 0;
  double busy = 0;
  for (const Program& program : programs) {
    RankReport& of_rank = report.ranks.emplace_back();
    const std::vector<Event> events = ComputeEvents(program, machine);
    for (const Event& event : events) {
      const double meetings =
          machine.MeetingSeconds(event.pp_rank, program.body[event.instruction]);
      of_rank.busy += event.end - event.start - meetings;
      of_rank.meetings += meetings;
    }
    busy += of_rank.busy;
    if (!events.empty()) {
      longest_span = std::max(longest_span, events.back().end - events.front().start);
    }
    SplitIdle(program, events, report.makespan, of_rank);
    FindPeaks(program, machine, of_rank);
    if (options.follow_memory) report.held.push_back(HeldOverTime(program, machine));
    report.events.insert(report.events.end(), events.begin(), events.end());
    report.num_messages +=
        std::count_if(program.body.begin(), program.body.end(),
                      [](const Instruction& instruction) { return instruction.op == Op::kSend; });
  }
  const double num_ranks = static_cast<double>(programs.size());
  if (report.makespan > 0) report.bubble_fraction = 1 - busy / (num_ranks * report.makespan);
  if (report.step_time > 0) report.step_bubble_fraction = 1 - busy / (num_ranks * report.step_time);
  if (longest_span > 0) report.span_bubble_fraction = 1 - busy / (num_ranks * longest_span);
  return report;
}

}  // namespace takt::sim
