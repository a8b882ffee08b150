// SPDX-License-Identifier: Apache-2.0
#include "common/sim/simulate.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/sim/dataflow.h"
#include "common/sim/machine.h"

namespace takt::sim {
namespace {

using program::Instruction;
using program::Op;
using program::Program;
using program::SlotKind;

// The programs of all ranks of one pipeline, in order, each well-formed.
absl::Status CheckTogether(const std::vector<Program>& programs) {
  if (programs.empty()) return absl::InvalidArgumentError("there are no programs");
  for (std::size_t rank = 0; rank < programs.size(); ++rank) {
    const Program& program = programs[rank];
    RETURN_IF_ERROR(program::CheckProgram(program));
    if (program.pp_rank.value() != static_cast<int>(rank) ||
        program.pp_size != static_cast<int>(programs.size())) {
      return absl::InvalidArgumentError(absl::StrCat("program ", rank, " of ", programs.size(),
                                                     " is for pp rank ", program.pp_rank.value(),
                                                     " of ", program.pp_size));
    }
    if (program.num_stages != programs[0].num_stages ||
        program.num_microbatches != programs[0].num_microbatches) {
      return absl::InvalidArgumentError(absl::StrCat(
          "program of pp rank ", rank, " has another number of stages or microbatches"));
    }
  }
  return absl::OkStatus();
}

// What a rank holds between F and W (or B).
class Stash {
 public:
  explicit Stash(const Program& program) : program_(program) {}

  void Count(const Instruction& instruction, RankReport& report) {
    if (instruction.op == Op::kForward) {
      bytes_ += BytesOf(instruction.writes);
      report.peak_in_flight = std::max(report.peak_in_flight, ++in_flight_);
      report.peak_stash_bytes = std::max(report.peak_stash_bytes, bytes_);
    } else if (instruction.op == Op::kWeightGrad || instruction.op == Op::kBackward) {
      bytes_ -= BytesOf(instruction.reads);
      --in_flight_;
    }
  }

 private:
  std::int64_t BytesOf(const std::vector<SlotId>& slots) const {
    std::int64_t bytes = 0;
    for (const SlotId slot : slots) {
      if (program_.slots[slot.value()].kind == SlotKind::kStash)
        bytes += program_.slots[slot.value()].bytes;
    }
    return bytes;
  }

  const Program& program_;
  int in_flight_ = 0;
  std::int64_t bytes_ = 0;
};

// Whether an O, F or B, I or W counts as forward and as backward: an O is both.
bool RunsForward(Op op) { return op == Op::kForward || op == Op::kOverlap; }
bool RunsBackward(Op op) { return op != Op::kForward; }

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
  switch (after) {
    case CriticalLink::After::kNothing:
      return "nothing";
    case CriticalLink::After::kSameRank:
      return "same rank";
    case CriticalLink::After::kMessage:
      return "message";
    case CriticalLink::After::kReduction:
      return "reduction";
    case CriticalLink::After::kOptimizer:
      return "optimizer";
  }
  return "unknown";
}

absl::StatusOr<Report> Simulate(const std::vector<Program>& programs, const cost::Costs& costs) {
  RETURN_IF_ERROR(CheckTogether(programs));
  RETURN_IF_ERROR(cost::CheckCosts(costs, programs[0].num_stages));
  Machine machine(programs, costs, /*steps=*/1);
  RETURN_IF_ERROR(machine.Run());

  Report report;
  double longest_span = 0;
  double busy = 0;
  std::vector<std::vector<Event>> events(programs.size());
  for (const Program& program : programs) {
    const int rank = program.pp_rank.value();
    RankReport& of_rank = report.ranks.emplace_back();
    Stash stash(program);
    for (const Machine::Span& span : machine.ComputeSpans(rank)) {
      const Instruction& instruction = program.body[span.instruction];
      const bool compute = program::IsCompute(instruction.op);
      if (compute || costs.optimizer > 0) report.makespan = std::max(report.makespan, span.end);
      if (!compute) continue;
      events[rank].push_back({rank, span.instruction, span.start, span.end});
      of_rank.busy += span.end - span.start;
      stash.Count(instruction, of_rank);
    }
    busy += of_rank.busy;
    if (!events[rank].empty()) {
      longest_span = std::max(longest_span, events[rank].back().end - events[rank].front().start);
    }
    report.num_messages +=
        std::count_if(program.body.begin(), program.body.end(),
                      [](const Instruction& instruction) { return instruction.op == Op::kSend; });
  }
  for (const Program& program : programs) {
    const int rank = program.pp_rank.value();
    SplitIdle(program, events[rank], report.makespan, report.ranks[rank]);
    report.events.insert(report.events.end(), events[rank].begin(), events[rank].end());
  }
  const double num_ranks = static_cast<double>(programs.size());
  if (report.makespan > 0) report.bubble_fraction = 1 - busy / (num_ranks * report.makespan);
  if (longest_span > 0) report.span_bubble_fraction = 1 - busy / (num_ranks * longest_span);
  return report;
}

absl::Status Prove(const std::vector<Program>& programs) {
  RETURN_IF_ERROR(CheckTogether(programs));
  for (const Program& program : programs) RETURN_IF_ERROR(CheckDataflow(program));
  // Completion does not depend on costs; two steps show that one leads to the next.
  const cost::Costs costs;
  return Machine(programs, costs, /*steps=*/2).Run();
}

}  // namespace takt::sim
