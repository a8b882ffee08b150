// SPDX-License-Identifier: Apache-2.0
#include "common/explain/explain.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

#include "common/base/median.h"
#include "common/base/status.h"
#include "common/explain/durations.h"
#include "common/trace/messages.h"

namespace takt::explain {
namespace {

using program::Op;
using trace::Slice;
using trace::TimeSum;

constexpr std::pair<std::string_view, std::string_view> kTexts[kNumParts] = {
    {"compute", "the work of all ranks, spread evenly"},
    {"imbalance", "stages and ranks that take longer than the mean"},
    {"schedule", "idle time of this schedule if stages were equal and messages free"},
    {"communication", "messages between stages, and between ranks that share layers"},
    {"data", "tokens that came late"},
    {"sync", "sums over ranks: gradients, norms"},
    {"runtime", "everything else: the engine's delays, processes that did not run"},
};

void SplitStep(const MeasuredStep& step, Explanation& result) {
  // Each run takes away one more cause than the run before it.
  const sim::Durations& usual = step.usual();
  const sim::Durations without_data = WithFree(step, usual, Work::kData);
  const sim::Durations without_sums = WithFree(step, without_data, Work::kSum);
  const sim::Durations compute_only = WithFree(step, without_sums, Work::kMessage);
  const sim::Durations balanced = Balanced(step, compute_only);
  const double of_usual = step.StepTime(usual);
  const double of_without_data = step.StepTime(without_data);
  const double of_without_sums = step.StepTime(without_sums);
  const double of_compute_only = step.StepTimeWithoutMeetings(compute_only);
  const double of_balanced = step.StepTimeWithoutMeetings(balanced);
  const std::vector<double> busy = BusySeconds(step, usual);
  const std::vector<double> balanced_busy = BusySeconds(step, balanced);
  const double ideal =
      std::accumulate(busy.begin(), busy.end(), 0.0) / static_cast<double>(busy.size());

  const auto part = [](Parts& parts, Part which) -> double& {
    return parts[static_cast<int>(which)];
  };
  part(result.parts, Part::kRuntime) = result.step_seconds - of_usual;
  part(result.parts, Part::kData) = of_usual - of_without_data;
  part(result.parts, Part::kSync) = of_without_data - of_without_sums;
  part(result.parts, Part::kCommunication) = of_without_sums - of_compute_only;
  part(result.parts, Part::kImbalance) = of_compute_only - of_balanced;
  part(result.parts, Part::kSchedule) = of_balanced - ideal;
  part(result.parts, Part::kCompute) = ideal;
  for (std::size_t rank = 0; rank < busy.size(); ++rank) {
    // For a rank, compute is its own work, and the two parts beside it are its own idle time.
    RankSplit& split = result.ranks[rank];
    split.parts = result.parts;
    part(split.parts, Part::kCompute) = busy[rank];
    part(split.parts, Part::kSchedule) = of_balanced - balanced_busy[rank];
    part(split.parts, Part::kImbalance) =
        (of_compute_only - busy[rank]) - (of_balanced - balanced_busy[rank]);
  }
}

void SumStalls(const trace::Timeline& timeline, const trace::StepWindow& step,
               Explanation& result) {
  for (std::size_t rank = 0; rank < result.ranks.size(); ++rank) {
    for (const trace::Span& stall : timeline.stalls[rank]) {
      const std::int64_t nanos =
          std::min(step.end_nanos, stall.end_nanos) - std::max(step.start_nanos, stall.start_nanos);
      result.ranks[rank].stalled_seconds +=
          static_cast<double>(std::max<std::int64_t>(0, nanos)) * 1e-9;
    }
  }
}

void SumLanes(const trace::Timeline& timeline, Explanation& result) {
  const trace::JobTrace& trace = *timeline.trace;
  const trace::MeetingIndex meetings(timeline);
  const auto window = std::ranges::find(timeline.steps, result.step, &trace::StepWindow::step);
  const auto step = static_cast<int>(window - timeline.steps.begin());
  double busy = 0;  // time in F, I, W, B, O; a bubble is time without them
  for (const Slice& slice : timeline.slices) {
    const program::Instruction& instruction = trace.ProgramOf(slice.rank).body[slice.instruction];
    if (slice.step != result.step || WorkOf(instruction) != Work::kCompute) continue;
    const std::int64_t nanos =
        trace::ComputeNanos(slice, meetings.At(step, {slice.rank, slice.instruction}));
    const double seconds = static_cast<double>(nanos) * 1e-9;
    result.ranks[slice.rank].busy_seconds += seconds;
    if (program::IsCompute(instruction.op)) busy += seconds;
  }
  for (const trace::Idle& idle : timeline.idle) {
    if (idle.step != result.step) continue;
    result.ranks[idle.rank].idle_seconds[static_cast<int>(idle.cause)] +=
        static_cast<double>(idle.end_nanos - idle.start_nanos) * 1e-9;
  }
  if (result.step_seconds > 0) {
    result.bubble_fraction =
        1 - busy / (static_cast<double>(result.ranks.size()) * result.step_seconds);
  }
  if (timeline.predicted.has_value()) {
    result.predicted_step_seconds = timeline.predicted->makespan;
    result.predicted_bubble_fraction = timeline.predicted->bubble_fraction;
  }
}

std::optional<WorstOp> FindWorstOp(const MeasuredStep& step) {
  std::map<Op, TimeSum> of_op;
  std::map<std::tuple<int, StageId, Op>, TimeSum> of_rank;
  step.ForEachPass([&](std::size_t rank, std::size_t i, Op op, StageId stage, double share) {
    const double seconds = share * step.usual()[rank][i];
    const program::Instruction& instruction = step.programs()[rank].body[i];
    of_op[op].Add(seconds, instruction);
    of_rank[{static_cast<int>(rank), stage, op}].Add(seconds, instruction);
  });
  std::optional<WorstOp> worst;
  double most = 0;
  for (const auto& [key, sum] : of_rank) {
    const auto [rank, stage, op] = key;
    const double mean = of_op[op].mean();
    const double excess = sum.seconds - sum.count * mean;
    if (excess <= most * (1 + 1e-9)) continue;
    most = excess;
    worst = WorstOp{
        .rank = rank, .stage = stage, .op = op, .seconds = sum.mean(), .mean_seconds = mean};
  }
  return worst;
}

std::optional<WorstLink> FindWorstLink(const MeasuredStep& step) {
  std::map<std::pair<int, int>, std::vector<double>> by_link;
  step.ForEach([&](std::size_t rank, std::size_t i, const program::Instruction& instruction) {
    if (instruction.op != Op::kRecv) return;
    const int from = step.programs()[rank].lanes[instruction.lane.value()].peer.value();
    by_link[{from, static_cast<int>(rank)}].push_back(step.usual()[rank][i]);
  });
  std::optional<WorstLink> worst;
  for (const auto& [link, seconds] : by_link) {
    const double median = Median(seconds);
    if (worst.has_value() && median <= worst->seconds) continue;
    worst = WorstLink{.from = link.first, .to = link.second, .seconds = median};
  }
  if (!worst.has_value()) return worst;
  std::vector<double> others;
  for (const auto& [link, seconds] : by_link) {
    if (link == std::pair(worst->from, worst->to)) continue;
    others.insert(others.end(), seconds.begin(), seconds.end());
  }
  if (!others.empty()) worst->others_seconds = Median(std::move(others));
  return worst;
}

// Returns for how long what ran ahead of each step ran again, on the rank where it took longest,
// for the steps that follow a recorded one. What ran again begins where the step before ended, and
// after a pause it does not.
std::map<StepId, double> RedoneSeconds(const trace::JobTrace& trace) {
  std::map<StepId, double> redone;
  for (const auto& rank : trace.ranks) {
    for (std::size_t i = 1; i < rank.steps.size(); ++i) {
      const trace::StepTrace& step = rank.steps[i];
      double& longest = redone[step.step];
      if (step.prologue.empty()) continue;
      std::int64_t end = 0;
      for (const trace::Span& span : rank.steps[i - 1].body) end = std::max(end, span.end_nanos);
      if (step.start_nanos != end) continue;
      const std::int64_t nanos = step.prologue.back().end_nanos - step.start_nanos;
      longest = std::max(longest, static_cast<double>(nanos) * 1e-9);
    }
  }
  return redone;
}

void SumUndone(const trace::JobTrace& trace, Explanation& result) {
  if (!std::ranges::any_of(trace.programs, program::OverlapsSteps)) return;
  Undone& undone = result.undone.emplace();
  for (const auto& [step, seconds] : RedoneSeconds(trace)) {
    ++undone.of;
    undone.steps += seconds > 0 ? 1 : 0;
    undone.seconds += seconds;
    if (step == result.step) result.redone_seconds = seconds;
  }
}

}  // namespace

std::string_view Name(Part part) { return kTexts[static_cast<int>(part)].first; }
std::string_view Meaning(Part part) { return kTexts[static_cast<int>(part)].second; }

absl::StatusOr<Explanation> Explain(const trace::Timeline& timeline, StepId step_id) {
  ASSIGN_OR_RETURN(const MeasuredStep step, MeasuredStep::Create(timeline, step_id));
  Explanation result{.step = step_id, .step_seconds = step.seconds()};
  result.ranks.resize(step.programs().size());
  SplitStep(step, result);
  SumLanes(timeline, result);
  SumStalls(timeline, step.window(), result);
  result.worst_op = FindWorstOp(step);
  result.worst_link = FindWorstLink(step);
  SumUndone(*timeline.trace, result);
  return result;
}

}  // namespace takt::explain
