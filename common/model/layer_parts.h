// SPDX-License-Identifier: Apache-2.0
// The parts of which the lists of layers of all families are made.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/model/model.h"
#include "common/model/tree_sum.h"
#include "common/model/vocabulary.h"

namespace takt::model {

inline constexpr std::int64_t kFloatBytes = 4;

inline Parameter Normal(std::string name, std::vector<std::int64_t> shape, double stddev) {
  return {
      .name = std::move(name), .shape = std::move(shape), .init = Init::kNormal, .stddev = stddev};
}
// Returns a table with a row of so many columns for each word.
inline Parameter TableByWord(std::string name, const ModelConfig& config) {
  return {.name = std::move(name),
          .shape = {config.vocab, config.hidden},
          .init = Init::kNormal,
          .stddev = config.initializer_range,
          .by_word = true};
}
inline Parameter Zeros(std::string name, std::int64_t size) {
  return {.name = std::move(name), .shape = {size}};
}
// Returns the bias of a product whose results have a precision.
inline Parameter Bias(std::string name, std::int64_t size, Precision results) {
  return {.name = std::move(name), .shape = {size}, .kept_rounded = results == Precision::kBf16};
}
inline Parameter Ones(std::string name, std::int64_t size) {
  return {.name = std::move(name), .shape = {size}, .init = Init::kOnes};
}

// Returns the rows of tokens of one microbatch.
inline std::int64_t Tokens(const ModelConfig& config, int microbatch) {
  return std::int64_t{microbatch} * config.context;
}

inline std::int64_t Bytes(Precision precision, std::int64_t elements) {
  return elements * (precision == Precision::kBf16 ? kFloatBytes / 2 : kFloatBytes);
}

// Returns the scratch of a gradient of the residual stream as products read it. It has no bytes
// where they read that gradient itself.
inline ScratchTensor RoundedGradient(const char* name, const Precisions& precisions,
                                     std::int64_t elements) {
  const bool rounds = precisions.RoundsGradientsOnce() && precisions.stream() == Precision::kF32;
  return {name, rounds ? Bytes(Precision::kBf16, elements) : 0};
}

// Returns the bytes that a layer passes on in f32: [B,T,C].
inline std::int64_t ActivationBytes(const ModelConfig& config, int microbatch) {
  return kFloatBytes * Tokens(config, microbatch) * config.hidden;
}

// Returns how many keys a token sees on average. Position t sees t+1 keys, or as many as the window
// has.
inline double KeysPerToken(const ModelConfig& config) {
  const double context = config.context, window = config.EffectiveWindow();
  if (window == 0) return (context + 1) / 2;
  return (window * (window + 1) / 2 + (context - window) * window) / context;
}

// Returns the FLOPs of QK^T and PV of one token. Each has 2 multiplications and additions for each
// channel and key.
inline double AttentionFlops(const ModelConfig& config) {
  return 4.0 * KeysPerToken(config) * config.heads * config.head_size;
}

// Returns the costs of a layer that has, for one token forward, `linear` FLOPs of products with
// weights and `attention` FLOPs of other products. I repeats the former and doubles the latter, W
// repeats the former.
inline LayerCost CostOf(double tokens, double linear, double attention) {
  return {.forward_flops = tokens * (linear + attention),
          .input_grad_flops = tokens * (linear + 2 * attention),
          .weight_grad_flops = tokens * linear};
}

// Sets the costs of a transformer block. linear: FLOPs of its products with weights, one token
// forward. inner: the columns that its last product takes of one token.
inline void SetBlockCost(Layer& layer, const ModelConfig& config, int microbatch, double linear,
                         double inner) {
  const auto tokens = static_cast<double>(Tokens(config, microbatch));
  layer.cost = CostOf(tokens, linear, AttentionFlops(config));
  // I computes all but the last product again, for nothing reads that one's output.
  layer.cost.recompute_flops =
      layer.cost.forward_flops - tokens * 2 * static_cast<double>(config.hidden) * inner;
  layer.cost.output_bytes = ActivationBytes(config, microbatch);
}

// Return a tensor of [rows,columns].
inline StashTensor Product(std::string_view name, std::int64_t rows, std::int64_t columns,
                           Precision precision = Precision::kF32) {
  return {name, Origin::kProduct, Bytes(precision, rows * columns), precision == Precision::kBf16};
}
inline StashTensor Rowwise(std::string_view name, std::int64_t rows, std::int64_t columns,
                           Precision precision = Precision::kF32) {
  return {name, Origin::kRowwise, Bytes(precision, rows * columns), precision == Precision::kBf16};
}

// Names the tensors that AddNorm adds.
struct NormNames {
  std::string_view output, stats, part;
};

// Adds a norm's output, its numbers for each row, and one microbatch's part of the gradients of its
// weights.
// num_stats: 2 (mean, rstd) or 1 (rstd); a norm has as many weights for each column.
inline void AddNorm(std::vector<StashTensor>& stash, const NormNames& names, std::int64_t rows,
                    std::int64_t columns, std::int64_t num_stats, Precision output) {
  stash.push_back(Rowwise(names.output, rows, columns, output));
  stash.push_back(Rowwise(names.stats, rows, num_stats));
  stash.push_back({names.part, Origin::kInputGrad, kFloatBytes * columns * num_stats});
}

// Makes the final norm, the logits and the loss: a head without its parameters.
inline Layer HeadLayer(LayerKind kind, const ModelConfig& config, int microbatch,
                       std::int64_t num_stats, Precision activations) {
  const std::int64_t rows = Tokens(config, microbatch);
  const int num_blocks = NumVocabularyBlocks(config.vocab);
  Layer layer{.kind = kind,
              .cost = CostOf(static_cast<double>(rows), 2.0 * config.hidden * config.vocab, 0)};
  AddNorm(layer.stash, {"norm", "norm_stats", "norm_part"}, rows, config.hidden, num_stats,
          activations);
  layer.stash.push_back(
      {"softmax_parts", Origin::kProduct, HeadStash::kSoftmaxBytes * num_blocks * rows});
  layer.stash.push_back({"softmax", Origin::kProduct, HeadStash::kSoftmaxBytes * rows});
  for (const VocabularyBlock& block : VocabularyBlocks(config.vocab)) {
    layer.stash.push_back(
        Product("logits", rows, LogitsStride(block.words, activations), activations));
  }
  // Sums of several blocks are rounded once they are complete, by whoever reads them.
  const Precision d_norm = num_blocks == 1 ? activations : Precision::kF32;
  for (int i = 0; i < TreeSum::MostBuffers(num_blocks); ++i)
    layer.scratch.push_back({"d_norm", Bytes(d_norm, rows * config.hidden)});
  return layer;
}

inline constexpr NormNames kNorm1 = {"norm1", "norm1_stats", "norm1_part"};
inline constexpr NormNames kNorm2 = {"norm2", "norm2_stats", "norm2_part"};

}  // namespace takt::model
