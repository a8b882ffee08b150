// SPDX-License-Identifier: Apache-2.0
#include "common/trace/timeline.h"

#include <algorithm>
#include <limits>
#include <span>
#include <utility>

#include "common/base/status.h"
#include "common/program/part_lists.h"
#include "common/sim/executed.h"
#include "common/trace/clocks.h"
#include "common/trace/idle.h"
#include "common/trace/messages.h"

namespace takt::trace {
namespace {

// Times are on the coordinator's clock.
std::vector<Slice> AlignedSlices(const JobTrace& trace, const Alignment& alignment,
                                 std::vector<Span> StepTrace::*list) {
  std::vector<Slice> slices;
  for (int rank = 0; rank < trace.num_ranks(); ++rank) {
    const std::int64_t offset = alignment.offset_nanos[rank];
    for (const StepTrace& step : trace.ranks[rank].steps) {
      const std::vector<Span>& spans = step.*list;
      for (std::size_t i = 0; i < spans.size(); ++i) {
        slices.push_back({.rank = rank,
                          .instruction = static_cast<std::int32_t>(i),
                          .step = step.step,
                          .start_nanos = spans[i].start_nanos + offset,
                          .end_nanos = spans[i].end_nanos + offset,
                          .in_prologue = list == &StepTrace::prologue});
      }
    }
  }
  return slices;
}

std::vector<Slice> AlignedMeetings(const JobTrace& trace, const Alignment& alignment) {
  std::vector<Slice> slices;
  for (int rank = 0; rank < trace.num_ranks(); ++rank) {
    const program::Program& program = trace.ProgramOf(rank);
    if (program.part_lists.empty()) continue;
    const std::int64_t offset = alignment.offset_nanos[rank];
    for (const StepTrace& step : trace.ranks[rank].steps) {
      auto span = step.meetings.begin();
      for (std::size_t i = 0; i < program.body.size(); ++i) {
        const std::span<const program::Part> parts = PartListOf(program.body[i], program);
        for (std::size_t part = 0; part < parts.size(); ++part) {
          if (!parts[part].meets()) continue;
          slices.push_back({.rank = rank,
                            .instruction = static_cast<std::int32_t>(i),
                            .step = step.step,
                            .start_nanos = span->start_nanos + offset,
                            .end_nanos = span->end_nanos + offset,
                            .part = static_cast<int>(part)});
          ++span;
        }
      }
    }
  }
  return slices;
}

std::vector<StepWindow> FindWindows(const JobTrace& trace, const Alignment& alignment) {
  std::vector<StepWindow> windows;
  for (int index = 0; index < trace.num_steps(); ++index) {
    StepWindow window{.step = trace.ranks[0].steps[index].step,
                      .start_nanos = std::numeric_limits<std::int64_t>::min(),
                      .end_nanos = std::numeric_limits<std::int64_t>::min()};
    for (int rank = 0; rank < trace.num_ranks(); ++rank) {
      const StepTrace& step = trace.ranks[rank].steps[index];
      const std::int64_t offset = alignment.offset_nanos[rank];
      window.start_nanos = std::max(window.start_nanos, step.start_nanos + offset);
      for (const Span& span : step.prologue) {
        window.start_nanos = std::max(window.start_nanos, span.end_nanos + offset);
      }
      for (const Span& span : step.body) {
        window.end_nanos = std::max(window.end_nanos, span.end_nanos + offset);
      }
    }
    windows.push_back(window);
  }
  return windows;
}

std::vector<Flow> FindFlows(const JobTrace& trace) {
  const SliceIndex index(trace);
  std::vector<Flow> flows;
  const std::vector<Message> messages = FindMessages(trace);
  for (int step = 0; step < trace.num_steps(); ++step) {
    for (const Message& message : messages) {
      flows.push_back({index(step, message.send), index(step, message.recv)});
    }
  }
  return flows;
}

std::vector<std::vector<Span>> AlignedStalls(const JobTrace& trace, const Alignment& alignment) {
  std::vector<std::vector<Span>> stalls;
  for (int rank = 0; rank < trace.num_ranks(); ++rank) {
    const std::int64_t offset = alignment.offset_nanos[rank];
    std::vector<Span> of_rank;
    for (const StepTrace& step : trace.ranks[rank].steps) {
      for (const Span& stall : step.stalls) {
        of_rank.push_back({stall.start_nanos + offset, stall.end_nanos + offset});
      }
    }
    stalls.push_back(Merged(std::move(of_rank)));
  }
  return stalls;
}

void MoveToOrigin(Timeline& timeline) {
  std::int64_t origin = timeline.steps.front().start_nanos;
  for (const std::vector<Slice>* slices : {&timeline.slices, &timeline.prologue}) {
    for (const Slice& slice : *slices) origin = std::min(origin, slice.start_nanos);
  }
  const auto shift = [origin](auto& list) {
    for (auto& each : list) {
      each.start_nanos -= origin;
      each.end_nanos -= origin;
    }
  };
  shift(timeline.slices);
  shift(timeline.prologue);
  shift(timeline.meetings);
  shift(timeline.steps);
  for (std::vector<Span>& stalls : timeline.stalls) shift(stalls);
}

}  // namespace

std::string_view Name(Cause cause) {
  constexpr std::string_view kNames[] = {"",     "peer", "link",    "reduction",
                                         "sync", "data", "runtime", "pause"};
  return kNames[static_cast<int>(cause)];
}

std::vector<Span> Merged(std::vector<Span> spans) {
  std::ranges::sort(spans, {}, &Span::start_nanos);
  std::vector<Span> merged;
  for (const Span& span : spans) {
    if (merged.empty() || span.start_nanos > merged.back().end_nanos) {
      merged.push_back(span);
    } else {
      merged.back().end_nanos = std::max(merged.back().end_nanos, span.end_nanos);
    }
  }
  return merged;
}

const program::Instruction& InstructionOf(const JobTrace& trace, const Slice& slice) {
  const program::Program& program = trace.ProgramOf(slice.rank);
  return (slice.in_prologue ? program.prologue : program.body)[slice.instruction];
}

absl::StatusOr<Timeline> MakeTimeline(const JobTrace& trace) {
  RETURN_IF_ERROR(CheckJobTrace(trace));
  if (trace.num_steps() == 0) {
    return absl::InvalidArgumentError("trace of job " + trace.job + ": no step was measured");
  }
  const Alignment alignment = AlignClocks(trace);
  Timeline timeline{.trace = &trace,
                    .steps = FindWindows(trace, alignment),
                    .slices = AlignedSlices(trace, alignment, &StepTrace::body),
                    .prologue = AlignedSlices(trace, alignment, &StepTrace::prologue),
                    .meetings = AlignedMeetings(trace, alignment),
                    .flows = FindFlows(trace),
                    .stalls = AlignedStalls(trace, alignment),
                    .clock_error_nanos = alignment.error_nanos};
  MoveToOrigin(timeline);
  timeline.idle = FindIdle(timeline);
  if (std::ranges::any_of(trace.programs, program::IsAsynchronous) ||
      std::ranges::any_of(trace.programs, program::OverlapsSteps)) {
    return timeline;
  }
  absl::StatusOr<sim::Report> predicted = sim::SimulateExecuted(trace.programs, trace.predicted);
  if (predicted.ok()) timeline.predicted = *std::move(predicted);
  return timeline;
}

}  // namespace takt::trace
