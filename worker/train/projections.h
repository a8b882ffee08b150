// SPDX-License-Identifier: Apache-2.0
// Linear layers that read the same input: q, k and v of attention, or gate and up of an MLP. One
// product computes all of them where their weights are joined (Parameter::adjoins_next). Elsewhere
// each has a product of its own. Callers give one output, or gradient of it, for each layer. Of
// joined layers only the first one is used: its rows hold those of all layers side by side.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "common/base/status.h"
#include "worker/backend/backend.h"
#include "worker/train/linear.h"
#include "worker/train/parameter_store.h"

namespace takt::train {

class Projections {
 public:
  // A weight [out,in] and its bias, of which there may be none. Borrowed.
  struct Part {
    const ParameterRef* weight;
    const ParameterRef* bias = nullptr;
  };
  // rows: N. Joined weights follow one another in their layer's parameters.
  Projections(std::int64_t rows, std::initializer_list<Part> parts)
      : joined_(parts.begin()->weight->parameter->adjoins_next) {
    layers_.reserve(parts.size());
    if (joined_) {
      layers_.emplace_back(rows, std::span(parts.begin()->weight, parts.size()));
      return;
    }
    for (const Part& part : parts)
      layers_.emplace_back(rows, Linear::Storage::kOutIn, *part.weight, part.bias);
  }

  bool joined() const { return joined_; }

  absl::Status Forward(backend::Backend& backend, const backend::Operand& x,
                       std::initializer_list<backend::Output> y) const {
    for (std::size_t i = 0; i < layers_.size(); ++i)
      RETURN_IF_ERROR(layers_[i].Forward(backend, x, nullptr, y.begin()[i]));
    return absl::OkStatus();
  }

  // Computes dx, the sum over layers. It is in f32 unless they are joined.
  absl::Status InputGrad(backend::Backend& backend, std::initializer_list<backend::Operand> dy,
                         const backend::Output& dx) const {
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      const backend::Operand sum = i == 0 ? backend::Operand() : dx;
      RETURN_IF_ERROR(layers_[i].InputGrad(backend, dy.begin()[i], dx, sum));
    }
    return absl::OkStatus();
  }

  using Microbatches = std::vector<backend::Operand>;
  absl::Status WeightGrad(backend::Backend& backend, const Microbatches& x,
                          std::initializer_list<Microbatches> dy, bool accumulate) const {
    for (std::size_t i = 0; i < layers_.size(); ++i)
      RETURN_IF_ERROR(layers_[i].WeightGrad(backend, x, dy.begin()[i], accumulate));
    return absl::OkStatus();
  }

 private:
  const bool joined_;
  std::vector<Linear> layers_;
};

}  // namespace takt::train
