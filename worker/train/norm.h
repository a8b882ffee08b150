// SPDX-License-Identifier: Apache-2.0
// Computes norms over rows. Their weight gradients are computed by I, while d_output and x still
// exist (both are overwritten afterwards). If W follows directly, I adds them to the gradients.
// Otherwise it leaves one microbatch's *part*, which W adds with the same bits. Both norms have the
// same members, so that layers can be templates over them.
#pragma once

#include <optional>
#include <span>

#include "absl/status/status.h"
#include "common/base/status.h"
#include "worker/backend/backend.h"
#include "worker/train/parameter_store.h"

namespace takt::train {

// What InputGrad reads and writes.
struct NormGradients {
  backend::Operand dy;               // [N,C]
  backend::Operand x;                // [N,C] the same as F's
  backend::Operand residual;         // [N,C] added to dx; optional
  backend::Output dx;                // [N,C]; may be x
  backend::Bf16* rounded = nullptr;  // [N,C] dx for products, if it is in f32; optional
  // Set where W is the next call: the gradients of the weights are then complete, and W adds no
  // part. Its value says whether they are added to.
  std::optional<bool> with_w;
  // [C] Gradients of biases, which are the sums over rows of `residual` and of dx. There are both
  // or none, and only with_w.
  float* residual_bias = nullptr;
  float* dx_bias = nullptr;
};

// What a norm leaves for its other passes.
struct NormStash {
  backend::Output output;  // [N,C]
  float* stats = nullptr;  // LayerNorm [2,N]: mean, rstd; RmsNorm [N]: rstd
  float* part = nullptr;   // from I for W: LayerNorm [2,C], weight's and bias's; RmsNorm [C]
};

// Both norms derive from it.
class Norm {
 public:
  // Adds the parts, by microbatch, to the weight gradients.
  absl::Status WeightGrad(backend::Backend& backend, std::span<const backend::Operand> parts,
                          bool accumulate) const {
    for (const backend::Operand& part : parts) {
      const float* from = part.f32;
      for (const ParameterRef& to : parameters_) {
        RETURN_IF_ERROR(AddPart(backend, from, to.gradient, accumulate));
        from += columns_;
      }
      accumulate = true;
    }
    return absl::OkStatus();
  }

 protected:
  // rows: N. parameters: [C] each; borrowed.
  Norm(std::int64_t rows, double epsilon, std::span<const ParameterRef> parameters)
      : rows_(rows),
        columns_(parameters[0].parameter->elements()),
        epsilon_(static_cast<float>(epsilon)),
        parameters_(parameters) {}

  const std::int64_t rows_, columns_;
  const float epsilon_;
  const std::span<const ParameterRef> parameters_;

 private:
  // Computes gradient (+)= part.
  absl::Status AddPart(backend::Backend& backend, const float* part, float* gradient,
                       bool accumulate) const {
    if (accumulate) {
      return backend.Run(
          backend::Add{.a = gradient, .b = part, .output = gradient, .count = columns_});
    }
    return backend.Run(backend::Copy{.input = part, .output = gradient, .count = columns_});
  }
};

class LayerNorm final : public Norm {
 public:
  static constexpr int kNumParameters = 2;  // weight, bias

  // parameters: weight and bias.
  LayerNorm(std::int64_t rows, double epsilon, std::span<const ParameterRef> parameters)
      : Norm(rows, epsilon, parameters.first(kNumParameters)) {}

  absl::Status Forward(backend::Backend& backend, const backend::Operand& x,
                       const NormStash& s) const {
    return backend.Run(backend::LayerNormForward{.input = x,
                                                 .weight = parameters_[0].weight,
                                                 .bias = parameters_[1].weight,
                                                 .output = s.output,
                                                 .mean = s.stats,
                                                 .rstd = s.stats + rows_,
                                                 .rows = rows_,
                                                 .columns = columns_,
                                                 .epsilon = epsilon_});
  }

  absl::Status InputGrad(backend::Backend& backend, const NormGradients& g,
                         const NormStash& s) const {
    const bool with_w = g.with_w.has_value();
    return backend.Run(backend::LayerNormBackwardInput{
        .d_output = g.dy,
        .x = g.x,
        .weight = parameters_[0].weight,
        .mean = s.stats,
        .rstd = s.stats + rows_,
        .residual_gradient = g.residual,
        .d_input = g.dx,
        .rounded = g.rounded,
        .sums = {.d_weight = with_w ? parameters_[0].gradient : s.part,
                 .d_bias = with_w ? parameters_[1].gradient : s.part + columns_,
                 .of_residual_gradient = g.residual_bias,
                 .of_d_input = g.dx_bias,
                 .accumulate = g.with_w.value_or(false)},
        .rows = rows_,
        .columns = columns_});
  }
};

class RmsNorm final : public Norm {
 public:
  static constexpr int kNumParameters = 1;  // weight

  // parameters: weight.
  RmsNorm(std::int64_t rows, double epsilon, std::span<const ParameterRef> parameters)
      : Norm(rows, epsilon, parameters.first(kNumParameters)) {}

  absl::Status Forward(backend::Backend& backend, const backend::Operand& x,
                       const NormStash& s) const {
    return backend.Run(backend::RmsNormForward{.input = x,
                                               .weight = parameters_[0].weight,
                                               .output = s.output,
                                               .rstd = s.stats,
                                               .rows = rows_,
                                               .columns = columns_,
                                               .epsilon = epsilon_});
  }

  absl::Status InputGrad(backend::Backend& backend, const NormGradients& g,
                         const NormStash& s) const {
    return backend.Run(backend::RmsNormBackwardInput{
        .d_output = g.dy,
        .x = g.x,
        .weight = parameters_[0].weight,
        .rstd = s.stats,
        .residual_gradient = g.residual,
        .d_input = g.dx,
        .rounded = g.rounded,
        .sums = {.d_weight = g.with_w.has_value() ? parameters_[0].gradient : s.part,
                 .accumulate = g.with_w.value_or(false)},
        .rows = rows_,
        .columns = columns_});
  }
};

}  // namespace takt::train
