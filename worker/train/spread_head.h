// SPDX-License-Identifier: Apache-2.0
// Computes the head between its norm and the norm's backward, where ranks share the vocabulary, as
// pp ranks over which it is spread, or as ranks that split layers: what one rank computes with its
// blocks of words. The bits are those of the head that is not cut (head.cc), whoever has which
// blocks. Letters: N rows of tokens of a microbatch, C hidden, D blocks in all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "common/mesh/vocabulary_split.h"
#include "common/model/model.h"
#include "common/model/tree_sum.h"
#include "worker/backend/backend.h"
#include "worker/train/head_product.h"
#include "worker/train/layer.h"
#include "worker/train/parameter_store.h"
#include "worker/train/stage.h"

namespace takt::train {

using model::PartialSums;

// Returns what a rank cannot add any further of the sum over all blocks.
inline PartialSums PartialSumsOf(const mesh::BlockRun& blocks) {
  return model::PartialSumsOf(blocks.first, blocks.last);
}

// The memory of one microbatch.
struct SpreadHeadMemory {
  TokenView view;
  backend::Output norm;                    // [N,C] the norm's output
  backend::SoftmaxPart* parts = nullptr;   // [D,N]; S makes those of the rank's blocks
  backend::SoftmaxRow* softmax = nullptr;  // [N]
  // By block of the rank: [N,words]. S leaves logits, T their gradients.
  std::vector<backend::Output> logits;
  // PartialSums::most buffers [N,C] for the gradient of the norm's output.
  std::vector<backend::Output> sums;
};

// One caller at a time.
class SpreadHead {
 public:
  // matrix: the rank's rows of the head's table, borrowed; null if the rank has no blocks.
  SpreadHead(const model::Model& model, const mesh::BlockRun& blocks, const ParameterRef* matrix);

  // S: computes logits and softmax parts of the rank's blocks.
  absl::Status Forward(backend::Backend& backend, const SpreadHeadMemory& memory) const;
  // The first half of T: adds the parts of all blocks to the softmax of whole rows, and the loss.
  absl::Status Loss(backend::Backend& backend, const SpreadHeadMemory& memory,
                    const LossCall& loss) const;
  // The second half of T: leaves the partial sums in the first buffers, and adds to the gradient of
  // the rank's rows, or overwrites it.
  absl::Status Backward(backend::Backend& backend, const SpreadHeadMemory& memory,
                        bool accumulate) const;

  // Backward in two: I of all blocks, and W of a block for several microbatches.
  absl::Status InputGrad(backend::Backend& backend, const SpreadHeadMemory& memory) const;
  // i: the block's index among those of the rank. norm, d_logits: by microbatch.
  absl::Status WeightGrad(backend::Backend& backend, std::size_t i,
                          std::span<const backend::Operand> norm,
                          std::span<const backend::Operand> d_logits, bool accumulate) const {
    return blocks_[i].product.WeightGrad(backend, norm, d_logits, accumulate);
  }

  const PartialSums& partial_sums() const { return partial_sums_; }

 private:
  struct Block {
    int number;  // among all
    std::int64_t first, words, stride;
    HeadProduct product;  // weight [words,C]
  };

  // Runs I of each block in ascending order, and after each absl::Status then(index).
  template <class Then>
  absl::Status ForEachInputGrad(backend::Backend& backend, const SpreadHeadMemory& memory,
                                const Then& then) const;

  const std::int64_t rows_, columns_, num_blocks_;
  const PartialSums partial_sums_;
  std::vector<Block> blocks_;  // constant after construction
};

}  // namespace takt::train
