// SPDX-License-Identifier: Apache-2.0
#include "worker/session/step_metrics.h"

#include <algorithm>
#include <map>
#include <span>
#include <string>
#include <utility>

namespace takt::session {

StepMetrics::StepMetrics(metrics::Registry& registry, const std::string& job, Rank rank,
                         const program::Program& program)
    : step_duration_(&registry.Histogram(metrics::kStepDuration, {job})),
      last_step_timestamp_(&registry.Gauge(metrics::kLastStepTimestamp, {job})) {
  const std::string pp_rank = std::to_string(program.pp_rank.value());
  bubble_fraction_ = &registry.Gauge(metrics::kBubbleFraction, {job, pp_rank});
  activation_bytes_ = &registry.Counter(metrics::kP2pBytes, {job, pp_rank, "activation"});
  gradient_bytes_ = &registry.Counter(metrics::kP2pBytes, {job, pp_rank, "gradient"});
  std::map<std::pair<StageId, program::Op>, std::size_t> places;
  for (const program::Instruction& instruction : program.body) {
    const auto [place, is_new] =
        places.try_emplace({instruction.stage, instruction.op}, op_series_.size());
    series_of_instruction_.push_back(place->second);
    if (is_new) {
      const std::string stage =
          instruction.stage.value() < 0 ? "" : std::to_string(instruction.stage.value());
      op_series_.push_back(
          {.histogram = &registry.Histogram(
               metrics::kOpDuration, {job, stage, std::string(program::Name(instruction.op))}),
           .counts = std::vector<double>(metrics::HistogramBounds().size() + 1)});
    }
    if (instruction.op != program::Op::kSend) continue;
    const bool activation =
        program.lanes[instruction.lane.value()].direction == program::Direction::kActivation;
    double& bytes = activation ? activation_bytes_per_step_ : gradient_bytes_per_step_;
    for (const SlotId slot : instruction.reads)
      bytes += static_cast<double>(program.slots[slot.value()].bytes);
  }
  if (rank != Rank(0)) return;
  loss_ = &registry.Gauge(metrics::kLoss, {job});
  grad_norm_ = &registry.Gauge(metrics::kGradNorm, {job});
  learning_rate_ = &registry.Gauge(metrics::kLearningRate, {job});
  tokens_ = &registry.Counter(metrics::kTokens, {job});
}

void StepMetrics::Record(const engine::StepTiming& timing, const StepReport& report,
                         absl::Time now) {
  if (timing.timings != nullptr) RecordOps(*timing.timings);
  step_duration_->Observe(report.step_seconds);
  if (report.step_seconds > 0) {
    bubble_fraction_->Set(std::max(0.0, 1 - report.busy_seconds / report.step_seconds));
  }
  last_step_timestamp_->Set(absl::ToDoubleSeconds(now - absl::UnixEpoch()));
  activation_bytes_->Increment(activation_bytes_per_step_);
  gradient_bytes_->Increment(gradient_bytes_per_step_);
  if (loss_ == nullptr) return;
  loss_->Set(report.loss);
  grad_norm_->Set(report.grad_norm);
  learning_rate_->Set(report.learning_rate);
  tokens_->Increment(static_cast<double>(report.tokens));
}

void StepMetrics::RecordOps(const std::vector<engine::InstructionTiming>& timings) {
  const std::span<const double> bounds = metrics::HistogramBounds();
  const std::size_t n = std::min(timings.size(), series_of_instruction_.size());
  for (std::size_t i = 0; i < n; ++i) {
    OpSeries& series = op_series_[series_of_instruction_[i]];
    const double seconds =
        static_cast<double>(timings[i].end_nanos - timings[i].start_nanos) * 1e-9;
    ++series.counts[std::ranges::lower_bound(bounds, seconds) - bounds.begin()];
    series.sum_seconds += seconds;
  }
  for (OpSeries& series : op_series_) {
    series.histogram->ObserveMultiple(series.counts, series.sum_seconds);
    std::ranges::fill(series.counts, 0.0);
    series.sum_seconds = 0;
  }
}

}  // namespace takt::session
