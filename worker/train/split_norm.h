// SPDX-License-Identifier: Apache-2.0
// Computes a norm of rows that ranks share. Each leaf of rows has ops of its own, and its own part
// of the gradients of the weights, so that no bit depends on the number of ranks.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "common/base/status.h"
#include "worker/train/norm.h"
#include "worker/train/stash_view.h"
#include "worker/train/tensor_meetings.h"

namespace takt::train {

// Adds one microbatch's parts of the gradients of a norm's weights, or sets the gradients to them.
// parts: [leaves, weights, C], by microbatch. leaf: the first gradient that they belong to.
inline absl::Status AddNormParts(backend::Backend& backend, std::span<const ParameterRef> weights,
                                 std::span<const backend::Operand> parts, int leaf, int leaves,
                                 bool accumulate) {
  for (const backend::Operand& microbatch : parts) {
    const float* part = microbatch.f32;
    for (int i = leaf; i < leaf + leaves; ++i) {
      for (const ParameterRef& weight : weights) {
        const std::int64_t columns = weight.elements();
        float* const gradient = weight.gradient + i * columns;
        if (accumulate) {
          RETURN_IF_ERROR(backend.Run(
              backend::Add{.a = gradient, .b = part, .output = gradient, .count = columns}));
        } else {
          RETURN_IF_ERROR(
              backend.Run(backend::Copy{.input = part, .output = gradient, .count = columns}));
        }
        part += columns;
      }
    }
    accumulate = true;
  }
  return absl::OkStatus();
}

// NormType: LayerNorm or RmsNorm.
template <class NormType>
class SplitNorm {
 public:
  // weights: NormType's, borrowed. meetings: borrowed.
  SplitNorm(const TensorMeetings& meetings, double epsilon, std::span<const ParameterRef> weights)
      : leaves_(meetings.share().leaves_here()),
        rows_(meetings.rows_here() / leaves_),
        columns_(weights.front().elements()),
        first_(meetings.first_row() * columns_),
        weights_(weights.first(NormType::kNumParameters)),
        norm_(rows_, epsilon, weights) {}

  // Leaves the norm of this rank's rows of x [n,C] in its rows of s.output [N,C].
  absl::Status Forward(backend::Backend& backend, const float* x, const NormStash& s) const {
    for (int leaf = 0; leaf < leaves_; ++leaf)
      RETURN_IF_ERROR(norm_.Forward(backend, x + Before(leaf), StashOf(s, leaf)));
    return absl::OkStatus();
  }

  // All tensors of g have this rank's rows alone, [n,C].
  absl::Status InputGrad(backend::Backend& backend, const NormGradients& g,
                         const NormStash& s) const {
    for (int leaf = 0; leaf < leaves_; ++leaf) {
      const std::int64_t before = Before(leaf);
      RETURN_IF_ERROR(norm_.InputGrad(
          backend,
          {.dy = g.dy.f32 + before,
           .x = g.x.f32 + before,
           .residual = g.residual.f32 == nullptr ? nullptr : g.residual.f32 + before,
           .dx = g.dx.f32 + before},
          StashOf(s, leaf)));
    }
    return absl::OkStatus();
  }

  // Adds the parts, by microbatch, to the weight gradients.
  absl::Status WeightGrad(backend::Backend& backend, std::span<const backend::Operand> parts,
                          bool accumulate) const {
    return AddNormParts(backend, weights_, parts, /*leaf=*/0, leaves_, accumulate);
  }

 private:
  std::int64_t Before(int leaf) const { return leaf * rows_ * columns_; }
  // A norm has as many numbers for each row as it has weights for each column.
  NormStash StashOf(const NormStash& s, int leaf) const {
    constexpr std::int64_t kNumbers = NormType::kNumParameters;
    return {.output = From(s.output, first_ + Before(leaf)),
            .stats = s.stats + leaf * rows_ * kNumbers,
            .part = s.part + leaf * columns_ * kNumbers};
  }

  const int leaves_;
  const std::int64_t rows_, columns_;  // of a leaf
  const std::int64_t first_;           // element of s.output
  const std::span<const ParameterRef> weights_;
  const NormType norm_;
};

}  // namespace takt::train
