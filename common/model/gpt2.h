// SPDX-License-Identifier: Apache-2.0
// The GPT-2 family: names, shapes, initial values and costs of its layers.
#pragma once

#include <vector>

#include "common/model/model.h"

namespace takt::model {

// Embedding, blocks, head.  Precondition: `config` is valid (BuildModel checked it).
std::vector<Layer> Gpt2Layers(const ModelConfig& config, int microbatch);

}  // namespace takt::model
