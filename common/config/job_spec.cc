// SPDX-License-Identifier: Apache-2.0
#include "common/config/job_spec.h"

#include <cmath>
#include <numbers>
#include <utility>

namespace takt::config {

double LearningRate(const Adamw& adamw, const LrSchedule& schedule, std::int64_t step) {
  const double peak = adamw.learning_rate, min = schedule.min_learning_rate;
  const auto warmup = static_cast<double>(schedule.warmup_steps), k = static_cast<double>(step);
  if (step <= schedule.warmup_steps) return peak * k / warmup;
  if (schedule.decay == LrDecay::kConstant) return peak;
  if (step > schedule.decay_steps) return min;
  const double turn =
      std::numbers::pi * (k - warmup) / (static_cast<double>(schedule.decay_steps) - warmup);
  return min + 0.5 * (peak - min) * (1 + std::cos(turn));
}

void JobSpec::FixBits(int chosen_data, int chosen_microbatch) {
  if (std::exchange(parallelism.data_auto, false)) parallelism.data = chosen_data;
  if (std::exchange(microbatch_auto, false)) microbatch = chosen_microbatch;
}

JobSpec JobSpec::WithOpenSizes() const {
  JobSpec open = *this;
  if (elastic.pipeline.has_value()) open.parallelism.pipeline.reset();
  if (elastic.data.has_value()) open.parallelism.data.reset();
  return open;
}

bool JobSpec::LeavesSizeOpen() const {
  const bool open_data =
      parallelism.data_auto || (elastic.data.has_value() && !parallelism.data.has_value());
  return open_data || !parallelism.pipeline.has_value();
}

int JobSpec::LeastData() const {
  if (parallelism.data.has_value() || !elastic.data.has_value())
    return parallelism.data.value_or(1);
  int size = elastic.data->min;
  while (size < elastic.data->max && !DividesBatch(size)) ++size;
  return size;
}

int JobSpec::LeastPipeline() const {
  return parallelism.pipeline.value_or(elastic.pipeline.has_value() ? elastic.pipeline->min : 1);
}

std::optional<int> JobSpec::MostWorkers() const {
  std::optional<int> data = parallelism.data, pipeline = parallelism.pipeline;
  if (!pipeline.has_value() && elastic.pipeline.has_value()) pipeline = elastic.pipeline->max;
  if (!data.has_value() && elastic.data.has_value()) {
    data = elastic.data->max;
    while (*data > elastic.data->min && !DividesBatch(*data)) --*data;
  } else if (!data.has_value() && !parallelism.data_auto) {
    data = 1;
  }
  if (!data.has_value() || !pipeline.has_value()) return std::nullopt;
  return *data * *pipeline;
}

model::Precisions PrecisionsOf(const JobSpec& job, DeviceKind device) {
  return {.products = job.precision,
          .activations = device == DeviceKind::kCuda ? job.precision : Precision::kF32};
}

}  // namespace takt::config
