// SPDX-License-Identifier: Apache-2.0
// The families that descend from Llama: names, shapes, initial values and costs of their layers.
// Qwen2 is Llama with biases on q, k and v. Qwen3 is Llama with a norm of each query and key.
// Mistral is Llama whose tokens see only the last keys (ModelConfig::attention_window). Mixtral is
// Llama, and Qwen3-MoE is Qwen3, with a mixture of experts (mixture.h) in place of the MLP.
#pragma once

#include <cstdint>
#include <vector>

#include "common/model/model.h"

namespace takt::model {

// Layer::stash of a block. N rows of tokens, C hidden, Q and K widths of query and key, E inner, H
// heads, G key/value heads, D head size. mixture.h says what is otherwise, and what comes at the
// end, in blocks with experts. The arrow points to what I leaves there for W. *: in the precision
// of activations, **: in that of products, ***: in that of the residual stream (model.h).
struct LlamaBlockStash {
  enum Tensor : std::uint8_t {
    kNorm1,       // [N,C] the first norm's output; **
    kNorm1Stats,  // [N] rstd
    kNorm1Part,   // [C] gradient of the weight, of this microbatch
    // Where their weights are joined (Parameter::adjoins_next), kQ has q, k and v side by side in
    // rows [N,Q+2K], and kK and kV are empty.
    kQ,          // [N,Q] rotated -> its gradient; *
    kK,          // [N,K] rotated -> its gradient; *
    kV,          // [N,K] -> its gradient; *
    kAttention,  // [N,Q] heads side by side; *
    kLogsumexp,  // [B,H,T]
    kMiddle,     // [N,C] between attention and MLP -> its gradient; ***
    kNorm2,      // as of the first
    kNorm2Stats,
    kNorm2Part,
    // Where gate and up are joined, kGate has both side by side, [N,2E], and kUp is empty.
    kGate,     // [N,E] -> its gradient; *
    kUp,       // [N,E] -> its gradient; *
    kProduct,  // [N,E] silu(gate) * up; **
    // Only a kQwen3Block and a kQwen3MoeBlock have the tensors below. Their kQ and kK are
    // normalised before they are rotated, and I leaves nothing there.
    kRawQ,        // [N,Q] before the norm, in f32 -> its gradient
    kQNormStats,  // [N,H] rstd
    kQNormPart,   // [D] gradient of the weight, of this microbatch
    kRawK,        // [N,K] before the norm, in f32 -> its gradient
    kKNormStats,  // [N,G] rstd
    kKNormPart,   // [D]
  };
};

// Layer::scratch of a block.
struct LlamaBlockScratch {
  enum Tensor : std::uint8_t {
    kDProduct,  // [N,E] gradient of the MLP's product; *. The next three take its place.
    // Where q, k and v are joined, the next three are one tensor [N,Q+2K].
    kDQ,          // [N,Q] gradient of q; *
    kDK,          // [N,K] gradient of k, right behind it; *
    kDV,          // [N,K] gradient of v, right behind it; *
    kDAttention,  // [N,Q] gradient of attention's output; *. The next one takes its place.
    // [N,C] gradient of what a norm gives. It is in f32 where it is a sum over products; one
    // product with joined weights leaves it in *.
    kDNorm,
    // [N,C] kMiddle's gradient in bf16; empty unless RoundsGradientsOnce and kMiddle is in f32.
    kDMiddle,
    kDWeights,  // only of a block with experts: [N*k] gradient of the router's weights, in f32
  };
};

// Returns embedding, blocks, head.  Precondition: `config` is valid (BuildModel checked it).
std::vector<Layer> LlamaLayers(const ModelConfig& config, int microbatch,
                               const Precisions& precisions);

// Returns the radians per position of each pair (i, i + head_size/2), i = 0 .. head_size/2 - 1.
// They are theta^(-2i/d), slowed down as config.rope_scaling says (Llama 3.1: long wavelengths by
// `factor`, short ones not, those between smoothly).
std::vector<double> RotaryFrequencies(const ModelConfig& config);

// Returns [context, head_size]: for each position the cosines of its angles, then their sines. It
// is empty for families that rotate nothing. It computes the angles in double.
std::vector<float> RotaryTable(const ModelConfig& config);
std::int64_t RotaryTableElements(const ModelConfig& config);

}  // namespace takt::model
