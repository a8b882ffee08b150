// SPDX-License-Identifier: Apache-2.0
#include "common/tokenizer/bpe.h"

#include <algorithm>
#include <cstddef>
#include <tuple>

namespace takt::tokenizer {

bool BpeMerger::IsLater(const Candidate& a, const Candidate& b) {
  return std::tie(a.rank, a.position) > std::tie(b.rank, b.position);
}

// Adds the pair that begins at `position`, if it can be merged.
void BpeMerger::Propose(std::int32_t position) {
  if (position < 0) return;
  const Symbol& left = symbols_[static_cast<std::size_t>(position)];
  if (left.next < 0) return;
  const Symbol& right = symbols_[static_cast<std::size_t>(left.next)];
  const BpeMerges::Merge* merge = merges_.Find(left.id, right.id);
  if (merge == nullptr) return;
  heap_.push_back({.rank = merge->rank,
                   .position = position,
                   .left = left.id,
                   .right = right.id,
                   .merged = merge->id});
  std::ranges::push_heap(heap_, IsLater);
}

void BpeMerger::Apply(std::vector<std::int32_t>& ids) {
  const auto count = static_cast<std::int32_t>(ids.size());
  symbols_.clear();
  heap_.clear();
  for (std::int32_t i = 0; i < count; ++i) {
    symbols_.push_back({.id = ids[static_cast<std::size_t>(i)],
                        .previous = i - 1,
                        .next = i + 1 < count ? i + 1 : -1});
  }
  for (std::int32_t i = 0; i < count; ++i) Propose(i);
  while (!heap_.empty()) {
    std::ranges::pop_heap(heap_, IsLater);
    const Candidate best = heap_.back();
    heap_.pop_back();
    Symbol& left = symbols_[static_cast<std::size_t>(best.position)];
    // One of the two may have been merged with another neighbour since.
    if (left.id != best.left || left.next < 0) continue;
    Symbol& right = symbols_[static_cast<std::size_t>(left.next)];
    if (right.id != best.right) continue;
    left.id = best.merged;
    left.next = right.next;
    right.id = -1;
    if (left.next >= 0) symbols_[static_cast<std::size_t>(left.next)].previous = best.position;
    Propose(left.previous);
    Propose(best.position);
  }
  ids.clear();
  for (std::int32_t i = count > 0 ? 0 : -1; i >= 0;) {
    const Symbol& symbol = symbols_[static_cast<std::size_t>(i)];
    ids.push_back(symbol.id);
    i = symbol.next;
  }
}

}  // namespace takt::tokenizer
