// SPDX-License-Identifier: Apache-2.0
#include "worker/session/step_metrics.h"

#include <algorithm>
#include <map>
#include <span>
#include <string>
#include <utility>

namespace takt::session {
namespace {

using program::Instruction;
using program::Op;
using program::Program;

std::string Label(StageId stage) { return stage.value() < 0 ? "" : std::to_string(stage.value()); }

// Returns, for each stage, the most microbatches that are between F and the end of W (or B) at a
// time, in the order of the body.
std::map<StageId, int> MostInFlight(const Program& program) {
  std::map<StageId, int> now, most;
  const auto run = [&](const std::vector<Instruction>& list) {
    for (const Instruction& instruction : list) {
      if (instruction.op == Op::kForward || instruction.op == Op::kOverlap) {
        most[instruction.stage] = std::max(most[instruction.stage], ++now[instruction.stage]);
      }
      if (instruction.op == Op::kWeightGrad) now[instruction.stage] -= instruction.num_microbatches;
      if (instruction.op == Op::kBackward) --now[instruction.stage];
      if (instruction.op == Op::kOverlap) --now[instruction.backward_stage];
    }
  };
  run(program.prologue);
  run(program.body);
  return most;
}

}  // namespace

StepMetrics::StepMetrics(metrics::Registry& registry, const std::string& job,
                         const mesh::Coordinates& at, const Program& program)
    : registry_(registry), job_(job) {
  registry
      .Gauge(metrics::kRankInfo, {job, std::to_string(at.pp.value()), std::to_string(at.dp.value()),
                                  std::to_string(at.cp.value()), std::to_string(at.tp.value())})
      .Set(1);
  for (const auto& [stage, most] : MostInFlight(program))
    registry.Gauge(metrics::kInFlight, {job, Label(stage)}).Set(most);
  if (program::OverlapsSteps(program)) {
    const std::string pp_rank = std::to_string(at.pp.value());
    undone_steps_ = &registry.Counter(metrics::kUndoneSteps, {job, pp_rank});
    held_steps_ = &registry.Counter(metrics::kHeldSteps, {job, pp_rank});
    undone_seconds_ = &registry.Counter(metrics::kUndoneSeconds, {job, pp_rank});
  }
  AddOps(registry, job, program);
  AddMessages(registry, job, program);
  FindConsumers(program);
}

void StepMetrics::AddOps(metrics::Registry& registry, const std::string& job,
                         const Program& program) {
  std::map<std::pair<StageId, Op>, std::size_t> places;
  for (const Instruction& instruction : program.body) {
    const auto [place, is_new] =
        places.try_emplace({instruction.stage, instruction.op}, op_series_.size());
    series_of_instruction_.push_back({place->second, instruction.num_microbatches});
    if (!is_new) continue;
    op_series_.push_back({.histogram = &registry.Histogram(
                              metrics::kOpDuration, {job, Label(instruction.stage),
                                                     std::string(program::Name(instruction.op))}),
                          .counts = std::vector<double>(metrics::HistogramBounds().size() + 1)});
  }
}

void StepMetrics::AddMessages(metrics::Registry& registry, const std::string& job,
                              const Program& program) {
  const std::string pp_rank = std::to_string(program.pp_rank.value());
  const auto add = [&](Messages& messages, const char* direction) {
    messages.bytes = &registry.Counter(metrics::kP2pBytes, {job, pp_rank, direction});
    messages.wait_seconds = &registry.Counter(metrics::kP2pWait, {job, pp_rank, direction});
  };
  add(activations_, "activation");
  add(gradients_, "gradient");
  for (const Instruction& instruction : program.body) {
    Messages*& of_instruction = messages_of_instruction_.emplace_back(nullptr);
    if (instruction.op != Op::kSend && instruction.op != Op::kRecv) continue;
    const bool activation =
        program.lanes[instruction.lane.value()].direction == program::Direction::kActivation;
    of_instruction = activation ? &activations_ : &gradients_;
    if (instruction.op != Op::kSend) continue;
    for (const SlotId slot : instruction.reads)
      of_instruction->bytes_per_step += static_cast<double>(program.slots[slot.value()].bytes);
  }
}

void StepMetrics::FindConsumers(const Program& program) {
  const program::WaitLists waits = program::Dependencies(program);
  std::vector<std::vector<std::size_t>> by_lane(program.lanes.size());  // instructions
  for (std::size_t i = 0; i < program.body.size(); ++i)
    by_lane[program.body[i].lane.value()].push_back(i);
  for (const std::vector<std::size_t>& lane : by_lane) {
    for (std::size_t position = 0; position < lane.size(); ++position) {
      const std::size_t i = lane[position];
      if (program.lanes[program.body[i].lane.value()].kind != program::LaneKind::kCompute) break;
      Consumer consumer{.instruction = i, .previous = position == 0 ? i : lane[position - 1]};
      for (const program::Wait& wait : waits[i]) {
        if (wait.position < 0) continue;  // of the iteration before, so it ended long ago
        const std::size_t awaited = by_lane[wait.lane.value()][wait.position];
        if (messages_of_instruction_[awaited] != nullptr) consumer.messages.push_back(awaited);
      }
      if (!consumer.messages.empty()) consumers_.push_back(std::move(consumer));
    }
  }
}

void StepMetrics::Record(const std::vector<engine::InstructionTiming>& timings) {
  if (timings.size() != series_of_instruction_.size()) return;  // timings of another program
  RecordOps(timings);
  RecordWaits(timings);
  for (const Messages* messages : {&activations_, &gradients_})
    messages->bytes->Increment(messages->bytes_per_step);
}

void StepMetrics::RecordOverlap(const train::StepResult& result, const engine::StepTiming& timing) {
  if (undone_steps_ == nullptr) return;
  if (result.undone) undone_steps_->Increment();
  if (result.held) held_steps_->Increment();
  if (!timing.redone || timing.prologue == nullptr || timing.prologue->empty()) return;
  const std::int64_t nanos = timing.prologue->back().end_nanos - timing.start_nanos;
  undone_seconds_->Increment(static_cast<double>(nanos) * 1e-9);
}

void StepMetrics::RecordExperts(const std::vector<train::ExpertLoad>& loads) {
  for (const train::ExpertLoad& load : loads) {
    const std::string block = std::to_string(load.block);
    registry_.Gauge(metrics::kExpertLoad, {job_, block}).Set(load.max_over_mean);
    registry_.Gauge(metrics::kExpertEntropy, {job_, block}).Set(load.entropy);
    registry_.Counter(metrics::kExpertDropped, {job_, block})
        .Increment(static_cast<double>(load.dropped));
  }
}

void StepMetrics::RecordOps(const std::vector<engine::InstructionTiming>& timings) {
  const std::span<const double> bounds = metrics::HistogramBounds();
  for (std::size_t i = 0; i < timings.size(); ++i) {
    const auto [index, times] = series_of_instruction_[i];
    OpSeries& series = op_series_[index];
    const double seconds =
        static_cast<double>(timings[i].end_nanos - timings[i].start_nanos) * 1e-9;
    series.counts[std::ranges::lower_bound(bounds, seconds / times) - bounds.begin()] += times;
    series.sum_seconds += seconds;
  }
  for (OpSeries& series : op_series_) {
    series.histogram->ObserveMultiple(series.counts, series.sum_seconds);
    std::ranges::fill(series.counts, 0.0);
    series.sum_seconds = 0;
  }
}

void StepMetrics::RecordWaits(const std::vector<engine::InstructionTiming>& timings) {
  for (const Consumer& consumer : consumers_) {
    const std::size_t last = *std::ranges::max_element(
        consumer.messages, {}, [&](std::size_t message) { return timings[message].end_nanos; });
    // For the first instruction of a step, the wait begins when the message was asked for.
    const std::int64_t idle_since = consumer.previous == consumer.instruction
                                        ? timings[last].start_nanos
                                        : timings[consumer.previous].end_nanos;
    const std::int64_t nanos = timings[last].end_nanos - idle_since;
    if (nanos > 0)
      messages_of_instruction_[last]->wait_seconds->Increment(static_cast<double>(nanos) * 1e-9);
  }
}

}  // namespace takt::session
