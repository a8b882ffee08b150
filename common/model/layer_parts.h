// SPDX-License-Identifier: Apache-2.0
// What the lists of layers of all families are made of.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "common/model/model.h"

namespace takt::model {

inline constexpr std::int64_t kFloatBytes = 4;

inline Parameter Normal(std::string name, std::vector<std::int64_t> shape, double stddev) {
  return {
      .name = std::move(name), .shape = std::move(shape), .init = Init::kNormal, .stddev = stddev};
}
inline Parameter Zeros(std::string name, std::int64_t size) {
  return {.name = std::move(name), .shape = {size}};
}
inline Parameter Ones(std::string name, std::int64_t size) {
  return {.name = std::move(name), .shape = {size}, .init = Init::kOnes};
}

// Of one microbatch.
inline std::int64_t Tokens(const ModelConfig& config, int microbatch) {
  return std::int64_t{microbatch} * config.context;
}

inline std::int64_t Bytes(Precision precision, std::int64_t elements) {
  return elements * (precision == Precision::kBf16 ? kFloatBytes / 2 : kFloatBytes);
}

// What a layer passes on: [B,T,C] in f32.
inline std::int64_t ActivationBytes(const ModelConfig& config, int microbatch) {
  return kFloatBytes * Tokens(config, microbatch) * config.hidden;
}

// QK^T and PV of one token, each 2 multiplications and additions per channel and key; position t
// sees t+1 keys, (T+1)/2 on average.
inline double AttentionFlops(const ModelConfig& config) {
  return 2.0 * (config.context + 1.0) * config.heads * config.head_size;
}

// Costs of a layer with `linear` FLOPs of products with weights and `attention` FLOPs of products
// without, one token forward: I repeats the former and doubles the latter, W repeats the former.
inline LayerCost CostOf(double tokens, double linear, double attention) {
  return {.forward_flops = tokens * (linear + attention),
          .input_grad_flops = tokens * (linear + 2 * attention),
          .weight_grad_flops = tokens * linear};
}

// Of [rows,columns].
inline StashTensor Product(std::int64_t rows, std::int64_t columns,
                           Precision precision = Precision::kF32) {
  return {Origin::kProduct, Bytes(precision, rows * columns), precision == Precision::kBf16};
}
inline StashTensor Rowwise(std::int64_t rows, std::int64_t columns,
                           Precision precision = Precision::kF32) {
  return {Origin::kRowwise, Bytes(precision, rows * columns), precision == Precision::kBf16};
}

// A norm's output, its numbers for each row, and one microbatch's part of its weights' gradients.
// num_stats: 2 (mean, rstd) or 1 (rstd), and as many weights a column.
inline void AddNorm(std::vector<StashTensor>& stash, const StashTensor& output, std::int64_t rows,
                    std::int64_t columns, std::int64_t num_stats) {
  stash.push_back(output);
  stash.push_back(Rowwise(rows, num_stats));
  stash.push_back({Origin::kInputGrad, kFloatBytes * columns * num_stats});
}

// By HeadStash.
inline std::vector<StashTensor> HeadTensors(const ModelConfig& config, std::int64_t rows,
                                            std::int64_t num_stats, Precision activations) {
  std::vector<StashTensor> stash;
  AddNorm(stash, Rowwise(rows, config.hidden, activations), rows, config.hidden, num_stats);
  stash.push_back(Product(rows, LogitsStride(config, activations), activations));
  return stash;
}

}  // namespace takt::model
