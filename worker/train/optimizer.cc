// SPDX-License-Identifier: Apache-2.0
#include "worker/train/optimizer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <utility>
#include <vector>

#include "common/base/status.h"

namespace takt::train {

namespace {

constexpr std::size_t kNumOthers = 3;  // entries after the sums of squares

// Computes the entries of the runs of one parameter that are here.
absl::Status SumSquares(backend::Backend& backend, const ParameterRef& ref, double* sums) {
  const std::int64_t columns = ref.columns();
  for (const auto& [first, rows] : ref.Runs()) {
    RETURN_IF_ERROR(backend.Run(backend::SumOfSquares{
        .input = ref.gradient + first * columns, .result = sums++, .count = rows * columns}));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Optimizer> Optimizer::Create(const config::JobSpec& job, const model::Model& model,
                                            ParameterStore& parameters, ResultGroups groups) {
  std::size_t entries = kNumOthers;
  for (const model::Parameter* const parameter : model.AllParameters())
    entries += static_cast<std::size_t>(model::NumNormEntries(*parameter));
  ASSIGN_OR_RETURN(backend::Buffer exchanged,
                   parameters.backend().AllocateHost(entries * sizeof(double)));
  return Optimizer(job, parameters, groups, std::move(exchanged));
}

Optimizer::Optimizer(const config::JobSpec& job, ParameterStore& parameters, ResultGroups groups,
                     backend::Buffer exchanged)
    : job_(job),
      parameters_(parameters),
      groups_(groups),
      counts_copies_(job.parallelism.expert == 1 || groups.tensor == nullptr ||
                     groups.tensor->index() == 0),
      exchanged_(std::move(exchanged)) {
  for (const ParameterRef* const ref : parameters.trained())
    settings_[ref->parameter] = config::SettingsOf(job, *ref->parameter);
}

absl::Status Optimizer::SumLeafGradients(backend::Backend& backend,
                                         TensorMeetings& meetings) const {
  for (const LayerParameters& layer : parameters_.layers()) {
    for (const ParameterRef& ref : layer.refs) {
      const model::Split& split = ref.parameter->split;
      if (!split.summed) continue;
      const std::int64_t count = ref.elements();
      for (int width = 1; width < split.gradients; width *= 2) {
        for (int i = 0; i < split.gradients; i += 2 * width) {
          float* const sum = ref.gradient + i * count;
          RETURN_IF_ERROR(backend.Run(
              backend::Add{.a = sum, .b = sum + width * count, .output = sum, .count = count}));
        }
      }
      // Where replicas share the optimizer's state, each has the sum over them of its shard alone.
      const std::span<float> mine(ref.gradient + ref.shard.first,
                                  static_cast<std::size_t>(ref.shard.count));
      RETURN_IF_ERROR(meetings.SumOverHolders(split, mine, scratch_));
    }
  }
  return absl::OkStatus();
}

absl::Status Optimizer::NormPartial(backend::Backend& backend, TensorMeetings* meetings) {
  if (meetings != nullptr) {
    RETURN_IF_ERROR(meetings->Exchange([&] { return SumLeafGradients(backend, *meetings); }));
  }
  const std::span<double> sums = exchanged();
  std::ranges::fill(sums, 0.0);
  if (shards_ != nullptr) return shards_->SumSquares(backend);
  for (const LayerParameters& layer : parameters_.layers()) {
    if (!layer.primary) continue;
    for (const ParameterRef& ref : layer.refs) {
      if (ref.norm_index < 0 || ref.parameter->balances) continue;
      if (!counts_copies_ && ref.parameter->expert < 0) continue;
      RETURN_IF_ERROR(SumSquares(backend, ref, &sums[ref.norm_index]));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<StepResult> Optimizer::Exchange(StepId step, const LossShare& loss) {
  const std::span<double> sums = exchanged();
  const std::size_t num_squares = sums.size() - kNumOthers;
  double& loss_sum = sums[num_squares];
  double& scored = sums[num_squares + 1];
  double& halting = sums[num_squares + 2];
  ASSIGN_OR_RETURN(const LossShare told, SumOverHolders(step, loss, groups_));
  loss_sum = told.sum;
  scored = static_cast<double>(told.scored);
  halting = told.halting;
  if (shards_ != nullptr) RETURN_IF_ERROR(shards_->AddSquares(step, sums.first(num_squares)));
  if (groups_.tensor != nullptr) {
    // All ranks of the group have the whole loss.
    if (groups_.tensor->index() > 0) loss_sum = scored = 0;
    RETURN_IF_ERROR(groups_.tensor->AllReduceSum(step, sums));
  }
  if (groups_.pipeline != nullptr) RETURN_IF_ERROR(groups_.pipeline->AllReduceSum(step, sums));

  const config::OptimizerTraits traits = config::TraitsOf(job_);
  double squares = 0;
  for (std::size_t i = 0; i < num_squares; ++i) squares += sums[i];
  result_ = {
      .loss = scored > 0 ? loss_sum / scored : 0,
      .grad_norm = std::sqrt(squares),
      .learning_rate = config::LearningRate(traits.learning_rate, job_.lr_schedule, step.value()),
      .tokens = static_cast<std::int64_t>(scored),
      .halt = RequestOf(halting)};
  return result_;
}

absl::Status Optimizer::UpdateBiases(backend::Backend& backend) const {
  for (const ParameterRef* const ref : UpdatedParts()) {
    if (!ref->parameter->balances) continue;
    const model::Mixture& mixture = *job_.model.mixture;
    const double tokens = static_cast<double>(job_.global_batch) * job_.model.context;
    const auto [first, count] = ref->shard;
    RETURN_IF_ERROR(
        backend.Run(backend::BalanceExperts{.previous = ref->shard_previous(),
                                            .counts = ref->gradient + first,
                                            .bias = ref->shard_weights(),
                                            .count = count,
                                            .mean = tokens * mixture.chosen / mixture.experts,
                                            .rate = static_cast<float>(mixture.bias_rate)}));
  }
  return absl::OkStatus();
}

double Optimizer::ClipFactor() const {
  const double clip_norm = config::TraitsOf(job_).clip_norm;
  return clip_norm > 0 ? std::min(1.0, clip_norm / (result_.grad_norm + 1e-6)) : 1.0;
}

Optimizer::Step Optimizer::StepOf(StepId step, std::int64_t number, double gradient_scale) const {
  return {.number = number,
          .learning_rate = config::LearningRate(config::TraitsOf(job_).learning_rate,
                                                job_.lr_schedule, step.value()),
          .gradient_scale = gradient_scale};
}

Optimizer::Step Optimizer::ForeseenStep(StepId step, std::int64_t number, bool knows_norm) const {
  Step foreseen = StepOf(step, number, knows_norm ? ClipFactor() : 1.0);
  foreseen.foresees = true;
  return foreseen;
}

absl::Status Optimizer::Update(backend::Backend& backend, StepId step, std::int64_t number) {
  parameters_.BeginUpdate();
  RETURN_IF_ERROR(UpdateAll(backend, StepOf(step, number, ClipFactor())));
  return FeedErrorsBack(backend);
}

absl::Status Optimizer::Foresee(backend::Backend& backend, StepId step, std::int64_t number,
                                bool knows_norm) {
  parameters_.BeginForesight();
  return UpdateAll(backend, ForeseenStep(step, number, knows_norm));
}

absl::Status Optimizer::ForeseeRows(backend::Backend& backend, const ParameterRef& rows,
                                    StepId step, std::int64_t number, bool knows_norm) const {
  if (rows.shard.count == 0) return absl::OkStatus();
  return UpdateElements(backend, std::array{TensorOf(rows)},
                        ForeseenStep(step, number, knows_norm));
}

absl::Status Optimizer::UpdateAll(backend::Backend& backend, const Step& step) {
  RETURN_IF_ERROR(UpdateBiases(backend));
  std::vector<backend::UpdatedTensor> tensors;
  for (const ParameterRef* const ref : UpdatedParts()) {
    if (step.foresees && parameters_.IsOfRows(*ref)) continue;
    if (ref->parameter->by_muon) {
      RETURN_IF_ERROR(UpdateByMuon(backend, *ref, step));
      continue;
    }
    if (!ref->parameter->balances) tensors.push_back(TensorOf(*ref));
  }
  return UpdateElements(backend, tensors, step);
}

backend::UpdatedTensor Optimizer::TensorOf(const ParameterRef& ref) const {
  const auto [first, count] = ref.shard;
  const config::UpdateSettings& settings = settings_.at(ref.parameter);
  const bool rounds = shards_ == nullptr;  // else what is gathered is rounded
  return {.parameter = ref.shard_weights(),
          .previous = ref.shard_previous(),
          .gradient = ref.gradient + first,
          .m = ref.m,
          .v = ref.v,
          .rounded = rounds && ref.is_rounded_by_update() ? ref.rounded : nullptr,
          .count = count,
          .learning_rate_scale = settings.learning_rate_scale,
          .weight_decay = settings.weight_decay};
}

absl::Status Optimizer::FeedErrorsBack(backend::Backend& backend) const {
  for (const ParameterRef* const ref : UpdatedParts()) {
    if (!ref->parameter->fed_back) continue;
    RETURN_IF_ERROR(backend.Run(
        backend::FeedBackError{.parameter = ref->shard_weights(),
                               .previous = ref->shard_previous(),
                               .last_update = ref->last_update,
                               .count = ref->shard.count,
                               .coefficient = static_cast<float>(job_.error_feedback)}));
  }
  return absl::OkStatus();
}

absl::Status Optimizer::UpdateByMuon(backend::Backend& backend, const ParameterRef& ref,
                                     const Step& step) {
  TAKT_CHECK(ref.shard.count == ref.parameter->elements());
  const config::UpdateSettings& settings = settings_.at(ref.parameter);
  return backend.Run(
      backend::MuonUpdate{.parameter = ref.weight,
                          .previous = ref.previous,
                          .gradient = ref.gradient,
                          .m = ref.m,
                          .scratch = scratch_,
                          .rows = ref.parameter->shape[0],
                          .columns = ref.parameter->shape[1],
                          .learning_rate = step.learning_rate * settings.learning_rate_scale,
                          .momentum = job_.muon->momentum,
                          .weight_decay = settings.weight_decay,
                          .nesterov = job_.muon->nesterov,
                          .gradient_scale = step.gradient_scale,
                          .foresees = step.foresees});
}

absl::Status Optimizer::UpdateElements(backend::Backend& backend,
                                       std::span<const backend::UpdatedTensor> tensors,
                                       const Step& step) const {
  if (job_.lion.has_value()) {
    return backend.Run(backend::LionUpdate{.tensors = tensors,
                                           .learning_rate = step.learning_rate,
                                           .beta1 = job_.lion->beta1,
                                           .beta2 = job_.lion->beta2,
                                           .gradient_scale = step.gradient_scale,
                                           .foresees = step.foresees});
  }
  if (job_.sgd.has_value()) {
    return backend.Run(backend::SgdUpdate{.tensors = tensors,
                                          .learning_rate = step.learning_rate,
                                          .momentum = job_.sgd->momentum,
                                          .nesterov = job_.sgd->nesterov,
                                          .gradient_scale = step.gradient_scale,
                                          .foresees = step.foresees});
  }
  const config::Adamw& adamw = job_.muon.has_value() ? job_.muon->adamw : job_.adamw;
  return backend.Run(backend::AdamwUpdate{.tensors = tensors,
                                          .step = step.number,
                                          .learning_rate = step.learning_rate,
                                          .beta1 = adamw.beta1,
                                          .beta2 = adamw.beta2,
                                          .epsilon = adamw.epsilon,
                                          .gradient_scale = step.gradient_scale,
                                          .foresees = step.foresees});
}

}  // namespace takt::train
