// SPDX-License-Identifier: Apache-2.0
// Names what decides how long the passes of a layer take: what the layer is, and where it runs.
#pragma once

#include <compare>
#include <cstdint>
#include <string>

#include "common/model/model.h"

namespace takt::profile {

// One value for each pass of a layer over one microbatch: seconds, or an amount of work.
struct Passes {
  double forward = 0, input_grad = 0, weight_grad = 0;

  double sum() const { return forward + input_grad + weight_grad; }
};

// Layers of the same shape do the same work. Sizes that the passes do not depend on are 0.
struct LayerShape {
  model::LayerKind kind = model::LayerKind::kEmbedding;
  int hidden = 0, heads = 0, kv_heads = 0, head_size = 0, inner = 0, vocab = 0;
  int context = 0, microbatch = 1;  // tokens of a sequence, sequences of a microbatch
  model::Precision products = model::Precision::kF32, activations = model::Precision::kF32;
  model::Recompute recompute = model::Recompute::kNone;
  // S and T of the words of one rank, under `vocabulary: spread`: `vocab` of them. S counts as the
  // forward, and T, which is not divided, as the gradient of the input. The kind is kEmbedding.
  bool spread = false;
  model::Fp8Recipe fp8 = model::Fp8Recipe::kNone;  // of a block's products
  int attention_window = 0;  // the most keys that a token sees; 0: all up to its own
  // Of a block with experts, whose `inner` is the width of one. The time of its passes is that of
  // the loads that were measured. Before anything was, all experts count as equally full.
  int experts = 0, chosen_experts = 0;
  int tensor = 1;         // how many ranks share the layer
  int context_ranks = 1;  // how many ranks share the tokens of each sequence
  model::Precision residual = model::Precision::kF32;  // of what layers pass on

  auto operator<=>(const LayerShape&) const = default;
};

// Says where a rank runs. Ranks on one host share its caches and its memory's bandwidth, so a layer
// takes longer with neighbours.
struct Conditions {
  std::string machine;     // the name of the processor, or of the GPU
  int threads = 1;         // of the rank; 0 on a GPU
  int ranks_per_host = 1;  // of the job; 1 on a GPU

  auto operator<=>(const Conditions&) const = default;
};

// The layer must not be of the emulated family, whose jobs say what their layers take.
LayerShape ShapeOf(const model::Model& model, const model::Layer& layer,
                   model::Recompute recompute);

// Returns whether the layer has a row of a table for each word: an embedding or a head. Under
// `vocabulary: spread` little is left of it on its stage.
bool HasWords(const model::Layer& layer);

// Returns the shape of S and T on a rank with so many words. Precondition: the model has a head.
LayerShape ShapeOfWords(const model::Model& model, std::int64_t words);

// Returns the work of S and T on that rank: its share of the head's.
Passes WorkOfWords(const model::Model& model, std::int64_t words);

// Returns the work by which times of layers of one kind are compared: FLOPs, and for the embedding,
// which only copies and adds, the bytes of its output.
Passes WorkOf(const model::Layer& layer, model::Recompute recompute);

// Returns for example "gpt2 block, hidden 512, heads 8, inner 2048, context 64, microbatch 1, f32".
std::string ToString(const LayerShape& shape);
// Returns for example "AMD EPYC 9B14, 1 thread, 2 ranks on the host".
std::string ToString(const Conditions& conditions);

}  // namespace takt::profile
