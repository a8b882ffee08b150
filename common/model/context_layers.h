// SPDX-License-Identifier: Apache-2.0
// Context parallelism: the layers of one of C ranks that share the tokens of every sequence.
//
// A sequence of T tokens is cut into 2 C equal pieces. Rank i has piece i and piece 2 C - 1 - i, so
// that under a causal mask all ranks have equally many pairs of a query and a key. Everything but
// attention works token by token. For attention each rank gets the keys and values that its queries
// see, and gives back what it adds to their gradients.
#pragma once

#include <cstdint>
#include <vector>

#include "common/base/status.h"
#include "common/model/model.h"

namespace takt::model {

// The share of one rank.
struct ContextShare {
  int size = 1;   // C
  int index = 0;  // of this rank

  // Returns the rank's first piece, or its second one (`half` 1).
  constexpr int PieceOf(int half) const { return half == 0 ? index : 2 * size - 1 - index; }
};

// Layer::scratch of a block ends with these tensors. K is the width of keys. They are in f32.
struct ContextScratch {
  enum Tensor : std::uint8_t {
    kKeys,        // [B,T,K] of all tokens that the rank sees, zeros for the others; F uses it too
    kValues,      // [B,T,K] likewise
    kKeyGrads,    // [B,T,K] what the rank's queries add to the gradients
    kValueGrads,  // [B,T,K] likewise
    kNumTensors,
  };
};

// Returns the columns of a row of keys, and of values.
std::int64_t KeyColumns(const ModelConfig& config);

// Returns whether a query of the rank may see a key of the piece.
// length: tokens of a piece. window: ModelConfig::EffectiveWindow.
bool SeesPiece(const ContextShare& share, int piece, std::int64_t length, std::int64_t window);

// Returns every rule that so many context ranks break, as fields of a job spec.  Precondition:
// `config` is valid.
std::vector<FieldError> CheckContext(const ModelConfig& config, const TensorShare& tensor,
                                     int context_ranks);

// Adds to layers, which are those of a sequence of model.context_here() tokens, what attention
// needs of the other ranks.  Precondition: CheckContext finds nothing, and there are several ranks.
void ShareSequences(Model& model);

}  // namespace takt::model
