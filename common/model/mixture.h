// SPDX-License-Identifier: Apache-2.0
// The mixture of experts that replaces the MLP of a block: its parameters, tensors and costs. Every
// token has `chosen` experts and none is dropped, so all sizes are known before the router has
// chosen.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/field_rules.h"
#include "common/model/model.h"

namespace takt::model {

// The last tensors of Layer::stash of a block with experts. N rows of tokens, E experts, k experts
// a token, F width of an expert. kGate, kUp and kProduct of LlamaBlockStash are [N*k,F] in such a
// block, and its kNorm2 is in f32 because the router reads it. The arrow points to what I leaves
// there for W.
struct MixtureStash {
  enum Tensor : std::uint8_t {
    kLogits,   // [N,E] of the router -> its gradient
    kChoices,  // [N*k] integers of 32 bits: the expert of each pair
    kWeights,  // [N*k] of each pair
    kOffsets,  // [E+1] integers: the rows of each expert
    kPairs,    // [N*k] integers: the pair of each row
  };
  static constexpr std::size_t kNumTensors = 5;
};

// Adds the tensors of MixtureStash.
void AddMixtureStash(std::vector<StashTensor>& stash, const ModelConfig& config, std::int64_t rows);

// Adds the router, then the gate, up and down matrices of each expert. The bias comes last, if the
// scores are sigmoids.
// prefix: of the block's parameters, e.g. "model.layers.3.".
void AddMixtureParameters(std::vector<Parameter>& parameters, const ModelConfig& config,
                          const std::string& prefix);

// Returns the FLOPs of the products of one token forward: those of the router, and of the experts
// that the token chooses.
double MixtureFlops(const ModelConfig& config);

// Checks the sizes, as fields of a job spec. The rest of `config` is valid.
void CheckMixture(const ModelConfig& config, FieldRules& rules);

}  // namespace takt::model
