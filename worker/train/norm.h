// SPDX-License-Identifier: Apache-2.0
// LayerNorm over rows. Its weight gradients come in two halves: I computes one microbatch's *part*
// while it has d_output and x at hand (both are overwritten afterwards), W adds the parts up. A
// part is 2C floats: of the weight, then of the bias.
#pragma once

#include <utility>

#include "absl/status/status.h"
#include "common/base/status.h"
#include "worker/backend/backend.h"
#include "worker/train/parameter_store.h"

namespace takt::train {

class Norm {
 public:
  // What F keeps for I, [N] each, in the stash.
  struct Statistics {
    float* mean = nullptr;
    float* rstd = nullptr;
  };

  // rows: N. weight, bias [C]: borrowed.
  Norm(std::int64_t rows, double epsilon, const ParameterRef& weight, const ParameterRef& bias)
      : rows_(rows),
        columns_(weight.parameter->elements()),
        epsilon_(static_cast<float>(epsilon)),
        weight_(weight),
        bias_(bias) {}

  absl::Status Forward(backend::Backend& backend, const float* x, float* y,
                       Statistics statistics) const {
    return backend.Run(backend::LayerNormForward{.input = x,
                                                 .weight = weight_.weight,
                                                 .bias = bias_.weight,
                                                 .output = y,
                                                 .mean = statistics.mean,
                                                 .rstd = statistics.rstd,
                                                 .rows = rows_,
                                                 .columns = columns_,
                                                 .epsilon = epsilon_});
  }

  struct Gradients {
    const float* dy = nullptr;
    const float* x = nullptr;
    const float* residual = nullptr;  // added to dx; optional
    float* dx = nullptr;              // may be x
    float* part = nullptr;            // [2C]
  };
  absl::Status InputGrad(backend::Backend& backend, const Gradients& g,
                         Statistics statistics) const {
    RETURN_IF_ERROR(backend.Run(backend::LayerNormBackwardWeights{.d_output = g.dy,
                                                                  .x = g.x,
                                                                  .mean = statistics.mean,
                                                                  .rstd = statistics.rstd,
                                                                  .d_weight = g.part,
                                                                  .d_bias = g.part + columns_,
                                                                  .rows = rows_,
                                                                  .columns = columns_}));
    return backend.Run(backend::LayerNormBackwardInput{.d_output = g.dy,
                                                       .x = g.x,
                                                       .weight = weight_.weight,
                                                       .mean = statistics.mean,
                                                       .rstd = statistics.rstd,
                                                       .residual_gradient = g.residual,
                                                       .d_input = g.dx,
                                                       .rows = rows_,
                                                       .columns = columns_});
  }

  absl::Status WeightGrad(backend::Backend& backend, const float* part, bool accumulate) const {
    for (const auto& [from, to] :
         {std::pair{part, weight_.gradient}, std::pair{part + columns_, bias_.gradient}}) {
      if (accumulate) {
        RETURN_IF_ERROR(
            backend.Run(backend::Add{.a = to, .b = from, .output = to, .count = columns_}));
      } else {
        RETURN_IF_ERROR(backend.Run(backend::Copy{.input = from, .output = to, .count = columns_}));
      }
    }
    return absl::OkStatus();
  }

 private:
  const std::int64_t rows_, columns_;
  const float epsilon_;
  const ParameterRef& weight_;
  const ParameterRef& bias_;
};

}  // namespace takt::train
