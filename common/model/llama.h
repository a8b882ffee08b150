// SPDX-License-Identifier: Apache-2.0
// The Llama and Qwen2 families: names, shapes, initial values and costs of their layers. Qwen2 is
// Llama with biases on q, k and v.
#pragma once

#include <vector>

#include "common/model/model.h"

namespace takt::model {

// Embedding, blocks, head.  Precondition: `config` is valid (BuildModel checked it).
std::vector<Layer> LlamaLayers(const ModelConfig& config, int microbatch);

// Radians per position of each pair (i, i + head_size/2), i = 0 .. head_size/2 - 1: theta^(-2i/d),
// slowed down as config.rope_scaling says (Llama 3.1: long wavelengths by `factor`, short ones not,
// between them smoothly).
std::vector<double> RotaryFrequencies(const ModelConfig& config);

}  // namespace takt::model
