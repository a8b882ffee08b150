// SPDX-License-Identifier: Apache-2.0
// Says which blocks of the vocabulary (common/model/vocabulary.h) each pp rank has where the
// vocabulary is spread over all of them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <vector>

#include "common/base/id.h"
#include "common/model/vocabulary.h"

namespace takt::mesh {

// One past the last block of each pp rank, in ascending order. It is empty where the vocabulary is
// not spread. A rank has the blocks from the end of the rank before it on, and may have none.
using VocabularyEnds = std::vector<int>;

// The blocks [first, last).
struct BlockRun {
  int first = 0, last = 0;
};

// So many words from `first` on.
struct WordRun {
  std::int64_t first = 0, words = 0;
};

// Returns whether `ends` share out all blocks of so many words over so many pp ranks.
inline bool IsSplitOf(const VocabularyEnds& ends, int pp_size, std::int64_t vocab) {
  return std::ssize(ends) == pp_size && std::ranges::is_sorted(ends) && !ends.empty() &&
         ends.front() >= 0 && ends.back() == model::NumVocabularyBlocks(vocab);
}

// Precondition: `ends` has an entry for the rank.
inline BlockRun BlocksOf(const VocabularyEnds& ends, PpRank rank) {
  const auto r = static_cast<std::size_t>(rank.value());
  return {.first = r == 0 ? 0 : ends[r - 1], .last = ends[r]};
}

// Precondition: as of BlocksOf, and the last end is NumVocabularyBlocks(vocab).
inline WordRun WordsOf(const VocabularyEnds& ends, PpRank rank, std::int64_t vocab) {
  const auto [first, last] = BlocksOf(ends, rank);
  const std::int64_t begin = std::min(vocab, first * model::kVocabularyBlock);
  return {.first = begin, .words = std::min(vocab, last * model::kVocabularyBlock) - begin};
}

}  // namespace takt::mesh
