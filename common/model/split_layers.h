// SPDX-License-Identifier: Apache-2.0
// Makes the layers of one rank under tensor parallelism, from the layers of the whole model.
//
// Each split dimension is cut into leaves: query heads, the inner width and, of what is not split,
// the rows of tokens. A rank has neighbouring leaves and computes each of them with ops of its own,
// whose shapes do not depend on the number of ranks. Sums over leaves are added along the tree of
// tree_sum.h. So the bits depend on the number of leaves alone. The vocabulary is cut into the
// blocks of vocabulary.h instead, of which a rank has neighbouring ones, or none.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "common/base/status.h"
#include "common/model/model.h"

namespace takt::model {

// Returns every rule that the share breaks, as fields of a job spec.  Precondition: `config` is
// valid.
std::vector<FieldError> CheckShare(const ModelConfig& config, int microbatch,
                                   const TensorShare& share);

// Replaces the layers of the whole model by those of model.tensor.  Precondition: CheckShare finds
// nothing, and the share splits.
void SplitLayers(Model& model);

// The blocks of words [first, last) of a rank.
struct BlocksOfRank {
  int first = 0, last = 0;
};
BlocksOfRank BlocksOf(const TensorShare& share, std::int64_t vocab);

// Returns how many elements of a parameter the model's rank has: the rows of its own words of a
// table, none of another rank's experts, and all of any other.
std::int64_t ElementsHere(const Model& model, const Parameter& parameter);

// Returns the share of another rank.
inline TensorShare ShareOf(TensorShare share, int index) {
  share.index = index;
  return share;
}

// Returns the shape of the whole parameter, which has the name in checkpoints.
std::vector<std::int64_t> WholeShape(const Parameter& parameter);

// Counts the elements of the whole parameter.
inline std::int64_t WholeElements(const Parameter& parameter) {
  return parameter.elements() / parameter.split.count * parameter.split.pieces;
}

// Returns what another of the ranks has of the parameter, of which `mine` is what one of them has.
// Precondition: the parameter is no table by words.
Parameter PartOfRank(const Parameter& mine, const TensorShare& share, int rank);

// Consecutive elements of a rank's pieces that are consecutive elements of the whole.
struct ElementRun {
  std::int64_t here = 0;   // the first of them, among the rank's
  std::int64_t whole = 0;  // among those of the whole
  std::int64_t count = 0;
};
// Calls `visit` for each run, in ascending order of `here`.  Precondition: the parameter is no
// table by words.
absl::Status ForEachRun(const Parameter& parameter,
                        absl::FunctionRef<absl::Status(const ElementRun&)> visit);

// Returns the piece of the rank's that a leaf uses, and which of the gradients is the leaf's.
struct LeafPiece {
  int piece = 0, gradient = 0;
};
LeafPiece PieceOf(const Parameter& parameter, const TensorShare& share, int leaf);

}  // namespace takt::model
