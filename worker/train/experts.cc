// SPDX-License-Identifier: Apache-2.0
#include "worker/train/experts.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/model/llama.h"

namespace takt::train {

using model::LlamaBlockScratch;
using model::LlamaBlockStash;
using model::MixtureStash;

Experts::Experts(const LayerOptions& options, const ParameterRef* router)
    : mixture_(*options.model.config.mixture),
      shared_(options.model.experts.shares()
                  ? std::optional<SharedMixture>(std::in_place, options, router + 1)
                  : std::nullopt),
      router_(router),
      layout_(options.place.stash),
      scratch_(options.place.scratch),
      first_(layout_.size() - MixtureStash::kNumTensors -
             (shared_.has_value() ? model::ArrivalsStash::kNumTensors : 0)),
      context_(options.model.config.context),
      rows_(options.model.microbatch * context_),
      hidden_(options.model.config.hidden),
      block_(options.layer.block),
      auxiliary_scale_(options.auxiliary_scale) {}

float* Experts::Floats(const StashView& s, MixtureStash::Tensor tensor) const {
  return s[first_ + tensor];
}

std::int32_t* Experts::Integers(const StashView& s, MixtureStash::Tensor tensor) const {
  return reinterpret_cast<std::int32_t*>(s[first_ + tensor]);
}

backend::ExpertRows Experts::RowsOf(const StashView& s) const {
  return {.offsets = Integers(s, MixtureStash::kOffsets),
          .pairs = Integers(s, MixtureStash::kPairs),
          .tokens = rows_,
          .experts = mixture_.experts,
          .chosen = mixture_.chosen};
}

SharedExperts::Routed Experts::RoutedOf(const StashView& s) const {
  return {.rows = RowsOf(s),
          .choices = Integers(s, MixtureStash::kChoices),
          .weights = Floats(s, MixtureStash::kWeights)};
}

absl::Status Experts::Route(backend::Backend& backend, const StashView& s) const {
  const ParameterRef* const bias = Bias();
  RETURN_IF_ERROR(backend.Run(backend::Matmul{.a = s[LlamaBlockStash::kNorm2],
                                              .b = router_->weight,
                                              .c = Floats(s, MixtureStash::kLogits),
                                              .b_transposed = true,
                                              .m = rows_,
                                              .n = mixture_.experts,
                                              .k = hidden_}));
  return backend.Run(backend::RouteTokens{.rows = {.offsets = Integers(s, MixtureStash::kOffsets),
                                                   .pairs = Integers(s, MixtureStash::kPairs),
                                                   .tokens = rows_,
                                                   .experts = mixture_.experts,
                                                   .chosen = mixture_.chosen},
                                          .logits = Floats(s, MixtureStash::kLogits),
                                          .choices = Integers(s, MixtureStash::kChoices),
                                          .weights = Floats(s, MixtureStash::kWeights),
                                          .bias = bias != nullptr ? bias->weight : nullptr,
                                          .normalised = mixture_.normalised,
                                          .sigmoid = bias != nullptr});
}

absl::Status Experts::Forward(const RecomputeCall& call, const StashView& s, bool products) const {
  backend::Backend& backend = *call.backend;
  const float* const norm = s[LlamaBlockStash::kNorm2];
  const backend::ExpertRows rows = RowsOf(s);
  if (products) RETURN_IF_ERROR(Route(backend, s));
  if (shared_.has_value()) return shared_->Forward(call, s, RoutedOf(s), products);
  if (products) {
    RETURN_IF_ERROR(
        Multiply(backend, rows, Matrix::kGate, {.a = norm, .c = s[LlamaBlockStash::kGate]}));
    RETURN_IF_ERROR(
        Multiply(backend, rows, Matrix::kUp, {.a = norm, .c = s[LlamaBlockStash::kUp]}));
  }
  return backend.Run(backend::ExpertSwigluForward{.rows = rows,
                                                  .gate = s[LlamaBlockStash::kGate],
                                                  .up = s[LlamaBlockStash::kUp],
                                                  .weights = Floats(s, MixtureStash::kWeights),
                                                  .output = s.Tensor(LlamaBlockStash::kProduct),
                                                  .columns = mixture_.inner});
}

absl::Status Experts::Output(const ForwardCall& call, const StashView& s,
                             const float* addend) const {
  const backend::ExpertRows rows = RowsOf(s);
  if (call.probe) {
    call.probe(absl::StrCat("router.", block_, ".logits"),
               {Floats(s, MixtureStash::kLogits), rows_, mixture_.experts});
  }
  if (call.expert_counts != nullptr) {
    RETURN_IF_ERROR(
        call.backend->Run(backend::CountExpertRows{.rows = rows, .counts = call.expert_counts}));
  }
  RETURN_IF_ERROR(call.backend->Run(
      backend::Copy{.input = addend, .output = call.output, .count = rows_ * hidden_}));
  if (shared_.has_value()) return shared_->Output(call, s, RoutedOf(s));
  return Multiply(
      *call.backend, rows, Matrix::kDown,
      {.a = s.Tensor(LlamaBlockStash::kProduct), .c = call.output.f32, .to_tokens = true});
}

absl::Status Experts::ProductGrads(const InputGradCall& call, const StashView& s,
                                   float* d_weights) const {
  backend::Backend& backend = *call.backend;
  const backend::ExpertRows rows = RowsOf(s);
  auto* const d_product =
      reinterpret_cast<float*>(call.scratch + scratch_[LlamaBlockScratch::kDProduct]);
  float *const gate = s[LlamaBlockStash::kGate], *const up = s[LlamaBlockStash::kUp];
  RETURN_IF_ERROR(Multiply(backend, rows, Matrix::kDown,
                           {.a = call.d_output, .c = d_product, .backward = true}));
  return backend.Run(backend::ExpertSwigluBackward{.rows = rows,
                                                   .gate = gate,
                                                   .up = up,
                                                   .weights = Floats(s, MixtureStash::kWeights),
                                                   .d_output = d_product,
                                                   .d_gate = gate,
                                                   .d_up = up,
                                                   .d_weights = d_weights,
                                                   .columns = mixture_.inner});
}

absl::Status Experts::RouterInputGrad(backend::Backend& backend, const StashView& s,
                                      const float* d_weights, float* d_norm) const {
  float* const logits = Floats(s, MixtureStash::kLogits);
  RETURN_IF_ERROR(
      backend.Run(backend::RouteTokensBackward{.rows = RowsOf(s),
                                               .logits = logits,
                                               .choices = Integers(s, MixtureStash::kChoices),
                                               .d_weights = d_weights,
                                               .d_logits = logits,
                                               .context = context_,
                                               .normalised = mixture_.normalised,
                                               .sigmoid = Bias() != nullptr,
                                               .auxiliary_scale = auxiliary_scale_}));
  return backend.Run(backend::Matmul{.a = logits,
                                     .b = router_->weight,
                                     .c = d_norm,
                                     .m = rows_,
                                     .n = hidden_,
                                     .k = mixture_.experts});
}

absl::Status Experts::InputGrad(const InputGradCall& call, const StashView& s,
                                float* d_norm) const {
  backend::Backend& backend = *call.backend;
  auto* const d_weights =
      reinterpret_cast<float*>(call.scratch + scratch_[LlamaBlockScratch::kDWeights]);
  const auto begin_d_norm = [&] { return RouterInputGrad(backend, s, d_weights, d_norm); };
  if (shared_.has_value()) {
    return shared_->InputGrad(
        call, s, RoutedOf(s),
        {.d_output = call.d_output.f32, .d_weights = d_weights, .d_norm = d_norm}, begin_d_norm);
  }
  RETURN_IF_ERROR(ProductGrads(call, s, d_weights));
  RETURN_IF_ERROR(begin_d_norm());
  const backend::ExpertRows rows = RowsOf(s);
  RETURN_IF_ERROR(
      Multiply(backend, rows, Matrix::kGate,
               {.a = s[LlamaBlockStash::kGate], .c = d_norm, .to_tokens = true, .backward = true}));
  return Multiply(backend, rows, Matrix::kUp,
                  {.a = s[LlamaBlockStash::kUp], .c = d_norm, .to_tokens = true, .backward = true});
}

absl::Status Experts::ExpertGrads(backend::Backend& backend, const WeightGradInput& input,
                                  bool accumulate) const {
  const StashView s(layout_, input.stash);
  if (shared_.has_value()) return shared_->WeightGrad(backend, s, accumulate);
  const backend::ExpertRows rows = RowsOf(s);
  const float* const norm = s[LlamaBlockStash::kNorm2];
  RETURN_IF_ERROR(MatrixGrads(backend, rows, Matrix::kDown,
                              {.d_output = input.d_output,
                               .input = s.Tensor(LlamaBlockStash::kProduct),
                               .accumulate = accumulate}));
  RETURN_IF_ERROR(
      MatrixGrads(backend, rows, Matrix::kUp,
                  {.d_output = s[LlamaBlockStash::kUp], .input = norm, .accumulate = accumulate}));
  return MatrixGrads(
      backend, rows, Matrix::kGate,
      {.d_output = s[LlamaBlockStash::kGate], .input = norm, .accumulate = accumulate});
}

// Microbatches are added one after the other, so that the sums do not depend on how many of them a
// W takes.
absl::Status Experts::WeightGrad(const WeightGradCall& call) const {
  backend::Backend& backend = *call.backend;
  bool accumulate = call.accumulate;
  for (const WeightGradInput& each : call.microbatches) {
    const StashView s(layout_, each.stash);
    const backend::ExpertRows rows = RowsOf(s);
    const float* const norm = s[LlamaBlockStash::kNorm2];
    RETURN_IF_ERROR(ExpertGrads(backend, each, accumulate));
    RETURN_IF_ERROR(backend.Run(backend::Matmul{.a = Floats(s, MixtureStash::kLogits),
                                                .b = norm,
                                                .c = router_->gradient,
                                                .addend = accumulate ? router_->gradient : nullptr,
                                                .a_transposed = true,
                                                .m = mixture_.experts,
                                                .n = hidden_,
                                                .k = rows_}));
    if (const ParameterRef* const bias = Bias()) {
      RETURN_IF_ERROR(backend.Run(
          backend::AddExpertRows{.rows = rows, .sums = bias->gradient, .accumulate = accumulate}));
    }
    accumulate = true;
  }
  return absl::OkStatus();
}

// Matrices are stored as [out,in].
absl::Status Experts::Multiply(backend::Backend& backend, const backend::ExpertRows& rows,
                               Matrix matrix, const Factors& factors) const {
  std::vector<backend::ExpertMatrix> matrices;
  for (std::int64_t e = 0; e < mixture_.experts; ++e) {
    const ParameterRef& weight = Of(e, matrix);
    if (weight.packed == nullptr) {
      matrices.push_back({.b = weight.weight});
    } else {
      matrices.push_back({.packed = factors.backward ? weight.packed : weight.packed_transposed});
    }
  }
  const std::vector<std::int64_t>& shape = Of(0, matrix).parameter->shape;
  const std::int64_t out = shape[0], in = shape[1];
  return backend.Run(backend::ExpertMatmul{.rows = rows,
                                           .matrices = matrices,
                                           .a = factors.a,
                                           .c = factors.c,
                                           .b_transposed = !factors.backward,
                                           .to_tokens = factors.to_tokens,
                                           .n = factors.backward ? in : out,
                                           .k = factors.backward ? out : in});
}

absl::Status Experts::MatrixGrads(backend::Backend& backend, const backend::ExpertRows& rows,
                                  Matrix matrix, const GradientFactors& factors) const {
  std::vector<backend::ExpertGradient> gradients;
  for (std::int64_t e = 0; e < mixture_.experts; ++e)
    gradients.push_back({.c = Of(e, matrix).gradient});
  const ParameterRef& first = Of(0, matrix);
  // The gradient of a token is that of all its experts. Other factors have a row for each pair.
  return backend.Run(backend::ExpertMatmulTransposed{.rows = rows,
                                                     .gradients = gradients,
                                                     .a = factors.d_output,
                                                     .b = factors.input,
                                                     .a_by_token = matrix == Matrix::kDown,
                                                     .in_bf16 = first.packed != nullptr,
                                                     .accumulate = factors.accumulate,
                                                     .m = first.parameter->shape[0],
                                                     .n = first.parameter->shape[1]});
}

}  // namespace takt::train
