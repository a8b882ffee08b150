// SPDX-License-Identifier: Apache-2.0
// The GPT-2 family: names, shapes, initial values and costs of its layers.
#pragma once

#include <vector>

#include "common/model/model.h"

namespace takt::model {

// Embedding, blocks, head.  Precondition: `config` is valid (BuildModel checked it).
std::vector<Layer> Gpt2Layers(const ModelConfig& config, int microbatch);

// Forward FLOPs of one token; see gpt2.cc for the count.
double Gpt2BlockLinearFlops(const ModelConfig& config);
double Gpt2BlockAttentionFlops(const ModelConfig& config);
double Gpt2HeadFlops(const ModelConfig& config);

}  // namespace takt::model
