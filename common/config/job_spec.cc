// SPDX-License-Identifier: Apache-2.0
#include "common/config/job_spec.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "common/base/status.h"
#include "common/model/head_slices.h"

namespace takt::config {

namespace {

// Returns the rate on a line from peak to min. progress: 0 to 1 on the line.
double OnLine(double peak, double min, double progress) {
  if (progress <= 0) return peak;
  if (progress >= 1) return min;
  return min + (peak - min) * (1 - progress);
}

}  // namespace

double LearningRate(double peak, const LrSchedule& schedule, std::int64_t step) {
  const double min = schedule.min_learning_rate;
  const auto warmup = static_cast<double>(schedule.warmup_steps), k = static_cast<double>(step);
  const auto decay_steps = static_cast<double>(schedule.decay_steps);
  if (step <= schedule.warmup_steps) return peak * k / warmup;
  switch (schedule.decay) {
    case LrDecay::kConstant:
      return peak;
    case LrDecay::kCosine: {
      if (step > schedule.decay_steps) return min;
      const double turn = std::numbers::pi * (k - warmup) / (decay_steps - warmup);
      return min + 0.5 * (peak - min) * (1 + std::cos(turn));
    }
    case LrDecay::kLinear:
      if (step > schedule.decay_steps) return min;
      return OnLine(peak, min, (k - warmup) / (decay_steps - warmup));
    case LrDecay::kWsd:
      return OnLine(peak, min,
                    (k - warmup - static_cast<double>(schedule.stable_steps)) / decay_steps);
    case LrDecay::kInverseSqrt:
      return std::max(min, peak * std::sqrt(warmup / k));
  }
  return peak;
}

void JobSpec::FixBits(int chosen_data, int chosen_microbatch, int chosen_tensor) {
  if (std::exchange(parallelism.data_auto, false)) parallelism.data = chosen_data;
  if (std::exchange(microbatch_auto, false)) microbatch = chosen_microbatch;
  if (std::exchange(parallelism.tensor_auto, false)) parallelism.tensor = chosen_tensor;
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
  return open_data || parallelism.tensor_auto || !parallelism.pipeline.has_value();
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
  if (!data.has_value() || !pipeline.has_value() || parallelism.tensor_auto) return std::nullopt;
  return *data * *pipeline * parallelism.RanksPerReplica();
}

OptimizerTraits TraitsOf(const JobSpec& job) {
  const auto traits = [](const char* name, const auto& optimizer, int moments) -> OptimizerTraits {
    return {.name = name,
            .learning_rate = optimizer.learning_rate,
            .weight_decay = optimizer.weight_decay,
            .clip_norm = optimizer.clip_norm,
            .moments = moments};
  };
  if (job.lion.has_value()) return traits("lion", *job.lion, 1);
  if (job.sgd.has_value()) return traits("sgd", *job.sgd, job.sgd->momentum > 0 ? 1 : 0);
  if (job.muon.has_value()) return traits("muon", *job.muon, 2);
  return traits("adamw", job.adamw, 2);
}

model::Precisions PrecisionsOf(const JobSpec& job, DeviceKind device) {
  return {.products = job.precision,
          .activations = device == DeviceKind::kCuda ? job.precision : Precision::kF32,
          .fp8 = job.fp8,
          .residual = job.residual};
}

absl::StatusOr<model::Model> BuildModelOf(const JobSpec& job, int microbatch, DeviceKind device,
                                          std::optional<TpRank> tensor_rank, DpRank dp_rank) {
  const Parallelism& p = job.parallelism;
  const model::TensorShare share{.size = p.tensor,
                                 .index = tensor_rank.value_or(TpRank(p.tensor - 1)).value(),
                                 .leaves = p.tensor_leaves > 0 ? p.tensor_leaves : p.tensor};
  const model::ExpertShare experts{.size = p.expert, .index = dp_rank.value() % p.expert};
  ASSIGN_OR_RETURN(model::Model model,
                   model::BuildModel(job.model, microbatch, PrecisionsOf(job, device), share,
                                     p.context, experts));
  model.separate_documents = job.SeparatesDocuments();
  if (device == DeviceKind::kCuda)
    model.head_slice = model::HeadSliceOf(model.rows(), model.config.vocab);
  const int moments = TraitsOf(job).moments;
  for (model::Layer& layer : model.layers) {
    for (model::Parameter& parameter : layer.parameters) {
      parameter.by_muon = job.muon.has_value() && layer.block >= 0 && parameter.shape.size() == 2;
      parameter.moments = parameter.by_muon ? 1 : moments;
      parameter.fed_back = job.error_feedback > 0 && !parameter.balances;
    }
  }
  return model;
}

}  // namespace takt::config
