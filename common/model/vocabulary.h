// SPDX-License-Identifier: Apache-2.0
// Whatever is computed for each word of the vocabulary is computed by blocks of words: logits,
// their softmax, the gradients of both, and the norm of the gradient of a table of words. A sum
// over the vocabulary is a sum over blocks in one order. So it has the same bits whichever rank
// computes which block (docs/numerics.md).
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace takt::model {

// The words of a block; the last block has those that are left. Another number would change the
// bits of all models with a larger vocabulary. It is a multiple of the elements that SumOfSquares
// adds first (worker/backend/ops.h), so that the blocks of a table are whole blocks of that sum,
// and of the units to which packed matrices and rows of logits are filled up.
inline constexpr std::int64_t kVocabularyBlock = 4096;

struct VocabularyBlock {
  std::int64_t first = 0, words = 0;
};

constexpr int NumVocabularyBlocks(std::int64_t vocab) {
  return static_cast<int>((vocab + kVocabularyBlock - 1) / kVocabularyBlock);
}

// Returns the blocks of a vocabulary in ascending order.
inline std::vector<VocabularyBlock> VocabularyBlocks(std::int64_t vocab) {
  std::vector<VocabularyBlock> blocks;
  for (std::int64_t first = 0; first < vocab; first += kVocabularyBlock)
    blocks.push_back({.first = first, .words = std::min(kVocabularyBlock, vocab - first)});
  return blocks;
}

}  // namespace takt::model
