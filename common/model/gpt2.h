// SPDX-License-Identifier: Apache-2.0
// The GPT-2 family: names, shapes, initial values and costs of its layers.
#pragma once

#include <cstdint>
#include <vector>

#include "common/model/model.h"

namespace takt::model {

// Layer::stash of a block. N rows of tokens, C hidden, E inner, H heads. The arrow points to what I
// leaves there for W. *: in the precision of activations, **: in that of products, ***: in that of
// the residual stream (model.h).
struct Gpt2BlockStash {
  enum Tensor : std::uint8_t {
    kNorm1,       // [N,C] ln_1's output; **
    kNorm1Stats,  // [2,N] mean, rstd
    kNorm1Part,   // [2,C] gradients of weight and bias, of this microbatch
    kQkv,         // [N,3C] -> its gradient; *
    kAttention,   // [N,C] heads side by side; *
    kLogsumexp,   // [B,H,T]
    kMiddle,      // [N,C] between attention and MLP -> its gradient; ***
    kNorm2,       // as of ln_1
    kNorm2Stats,
    kNorm2Part,
    kInner,      // [N,E] before gelu -> its gradient; *
    kActivated,  // [N,E] after gelu; **
  };
};

// Layer::scratch of a block.
struct Gpt2BlockScratch {
  enum Tensor : std::uint8_t {
    kDInner,  // [N,E] gradient of gelu's output or input; *
    // [N,3C] gradient of q k v; *. In f32 it takes the place of the one before; in bf16 it lies
    // behind that one, which W reads too.
    kDQkv,
    kDNorm,  // [N,C] gradient of what a norm or attention gives; *
    // [N,C] kMiddle's gradient in bf16; empty unless RoundsGradientsOnce and kMiddle is in f32.
    kDMiddle,
  };
};

// Returns embedding, blocks, head.  Precondition: `config` is valid (BuildModel checked it).
std::vector<Layer> Gpt2Layers(const ModelConfig& config, int microbatch,
                              const Precisions& precisions);

}  // namespace takt::model
