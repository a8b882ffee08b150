// SPDX-License-Identifier: Apache-2.0
#include "common/trace/page.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "absl/strings/str_replace.h"
#include "common/trace/labels.h"
#include "common/trace/messages.h"
#include "common/trace/page_html.h"
#include "nlohmann/json.hpp"

namespace takt::trace {
namespace {

using nlohmann::json;
using program::Instruction;
using program::Op;
using program::Program;

// Times in the page are in tenths of a microsecond. Nobody can see less, and it takes half the
// digits.
constexpr std::int64_t kUnitNanos = 100;

// Both ends are rounded, not the length, so that neighbours stay neighbours.
std::int64_t Units(std::int64_t nanos) {
  return (nanos + (nanos >= 0 ? kUnitNanos / 2 : -kUnitNanos / 2)) / kUnitNanos;
}

// The legend of the page's colours.
std::string_view KindOf(Op op) {
  if (program::IsCompute(op)) return program::Name(op);
  const bool updates = op == Op::kNormPartial || op == Op::kOptimizer || op == Op::kSpeculate;
  return updates || op == Op::kSnapshot ? "x" : "m";
}

json ProgramJson(const Program& program) {
  const std::vector<LaneId> order = LanesInOrder(program);
  json lanes = json::array();
  std::vector<int> place(program.lanes.size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    place[order[i].value()] = static_cast<int>(i);
    lanes.push_back(program::LaneName(program.lanes[order[i].value()]));
  }
  const std::set<StageId> held = program::HeldStages(program);
  const auto chunk_of = [&](StageId stage) {
    // S and T are of no stage.
    return stage.value() < program.num_stages ? std::distance(held.begin(), held.lower_bound(stage))
                                              : 0;
  };
  const auto list = [&](const std::vector<Instruction>& instructions) {
    json described = json::array();
    for (const Instruction& instruction : instructions) {
      described.push_back({ToString(instruction, program), KindOf(instruction.op),
                           chunk_of(instruction.stage), place[instruction.lane.value()]});
      if (instruction.op == Op::kOverlap)
        described.back().push_back(chunk_of(instruction.backward_stage));
    }
    return described;
  };
  return {{"lanes", lanes},
          {"body", list(program.body)},
          {"prologue", list(program.prologue)},
          {"chunks", held.size()}};
}

// The start and the length of each instruction. Starts count from the end of the one before it in
// the list.
json StepJson(std::span<const Slice> slices) {
  json deltas = json::array();
  std::int64_t at = 0;
  for (const Slice& slice : slices) {
    const std::int64_t start = Units(slice.start_nanos), end = Units(slice.end_nanos);
    deltas.push_back(start - at);
    deltas.push_back(end - start);
    at = end;
  }
  return deltas;
}

std::int64_t PlaceOf(const Timeline& timeline, StepId step) {
  return std::ranges::find(timeline.steps, step, &StepWindow::step) - timeline.steps.begin();
}

// The instructions that ran before the steps, each with its step, instruction, start and end.
json PrologueJson(const Timeline& timeline, int rank) {
  json list = json::array();
  for (const Slice& slice : timeline.prologue) {
    if (slice.rank != rank) continue;
    list.push_back({PlaceOf(timeline, slice.step), slice.instruction, Units(slice.start_nanos),
                    Units(slice.end_nanos)});
  }
  return list;
}

json RanksJson(const Timeline& timeline, RankRange wanted) {
  const JobTrace& trace = *timeline.trace;
  json ranks = json::array();
  auto idle = timeline.idle.begin();
  std::size_t next = 0;
  for (int rank = 0; rank < trace.num_ranks(); ++rank) {
    const std::size_t length = trace.ProgramOf(rank).body.size();
    if (!wanted.Has(rank)) {
      next += length * static_cast<std::size_t>(trace.num_steps());
      while (idle != timeline.idle.end() && idle->rank == rank) ++idle;
      continue;
    }
    json steps = json::array();
    for (int step = 0; step < trace.num_steps(); ++step, next += length) {
      steps.push_back(StepJson(std::span(timeline.slices).subspan(next, length)));
    }
    json idle_list = json::array();
    std::int64_t at = 0;
    for (; idle != timeline.idle.end() && idle->rank == rank; ++idle) {
      const std::int64_t start = Units(idle->start_nanos), end = Units(idle->end_nanos);
      for (const std::int64_t value :
           {start - at, end - start, static_cast<std::int64_t>(idle->cause),
            static_cast<std::int64_t>(idle->peer), static_cast<std::int64_t>(idle->before),
            PlaceOf(timeline, idle->step)}) {
        idle_list.push_back(value);
      }
      at = end;
    }
    ranks.push_back({{"name", RankName(trace, rank)},
                     {"program", trace.mesh.PpRankOf(Rank(rank)).value()},
                     {"steps", steps},
                     {"prologue", PrologueJson(timeline, rank)},
                     {"idle", idle_list}});
  }
  return ranks;
}

json PredictedJson(const Timeline& timeline) {
  if (!timeline.predicted.has_value()) return nullptr;
  json predicted = json::array();
  for (std::size_t i = 0; i < timeline.trace->programs.size(); ++i) {
    predicted.push_back(json::array());
  }
  for (const sim::Event& event : timeline.predicted->events) {
    const auto units = [](double seconds) { return Units(std::llround(seconds * 1e9)); };
    predicted[event.pp_rank].push_back({event.instruction, units(event.start), units(event.end)});
  }
  return predicted;
}

json TimelineJson(const Timeline& timeline, RankRange wanted) {
  json programs = json::array(), messages = json::array(), steps = json::array();
  for (const Program& program : timeline.trace->programs) programs.push_back(ProgramJson(program));
  for (const Message& message : FindMessages(*timeline.trace)) {
    if (!wanted.Has(message.send.rank) || !wanted.Has(message.recv.rank)) continue;
    messages.push_back({message.send.rank - wanted.first, message.send.instruction,
                        message.recv.rank - wanted.first, message.recv.instruction});
  }
  for (const StepWindow& step : timeline.steps) {
    steps.push_back({step.step.value(), Units(step.start_nanos), Units(step.end_nanos)});
  }
  json causes = json::array({json::array()});
  for (int cause = 1; cause <= kNumCauses; ++cause) {
    causes.push_back({Name(Cause(cause)), Meaning(Cause(cause))});
  }
  return {{"title", Title(timeline)},
          {"unit_ns", kUnitNanos},
          {"programs", std::move(programs)},
          {"first_rank", wanted.first},
          {"ranks", RanksJson(timeline, wanted)},
          {"messages", std::move(messages)},
          {"steps", std::move(steps)},
          {"predicted", PredictedJson(timeline)},
          {"causes", std::move(causes)}};
}

}  // namespace

std::string TimelineData(const Timeline& timeline, RankRange ranks) {
  return TimelineJson(timeline, ranks).dump(-1, ' ', true, json::error_handler_t::replace);
}

std::string_view TimelineScript() { return kTimelineScript; }

std::string WritePage(const Timeline& timeline) {
  // Inside a script element no text may look like its end.
  const std::string data = absl::StrReplaceAll(TimelineData(timeline), {{"<", "\\u003c"}});
  return absl::StrReplaceAll(kPageHtml,
                             {{"TAKT_SCRIPT", kTimelineScript}, {"TAKT_TIMELINE", data}});
}

}  // namespace takt::trace
