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

model::Precisions PrecisionsOf(const JobSpec& job, DeviceKind device) {
  return {.products = job.precision,
          .activations = device == DeviceKind::kCuda ? job.precision : Precision::kF32};
}

}  // namespace takt::config
