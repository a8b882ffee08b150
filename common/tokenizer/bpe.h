// SPDX-License-Identifier: Apache-2.0
// Byte-pair encoding, Sennrich et al. 2016: of all pairs of neighbours the one that was learned
// first is merged, the leftmost one among equals, until no pair is known.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace takt::tokenizer {

// Has the merges of a vocabulary. Immutable while it is used: safe from any thread then.
class BpeMerges {
 public:
  struct Merge {
    std::int32_t rank = 0;  // lower ones come first
    std::int32_t id = 0;    // of both together
  };
  // A pair that is added again takes the later merge.
  void Add(std::int32_t left, std::int32_t right, Merge merge) {
    merges_.insert_or_assign(KeyOf(left, right), merge);
  }
  // Returns nullptr if the two are never merged.
  const Merge* Find(std::int32_t left, std::int32_t right) const {
    const auto it = merges_.find(KeyOf(left, right));
    return it == merges_.end() ? nullptr : &it->second;
  }

 private:
  static std::uint64_t KeyOf(std::int32_t left, std::int32_t right) {
    return std::uint64_t{static_cast<std::uint32_t>(left)} << 32 |
           static_cast<std::uint32_t>(right);
  }
  absl::flat_hash_map<std::uint64_t, Merge> merges_;
};

// Merges the symbols of one piece after another in memory that it keeps. The time for n symbols is
// O(n log n). One caller at a time.
class BpeMerger {
 public:
  explicit BpeMerger(const BpeMerges& merges) : merges_(merges) {}

  // Replaces the ids of the symbols by those of the tokens that they merge to.
  void Apply(std::vector<std::int32_t>& ids);

 private:
  struct Symbol {
    std::int32_t id;              // -1: it was merged into the one before
    std::int32_t previous, next;  // -1: there is none
  };
  struct Candidate {
    std::int32_t rank, position;
    std::int32_t left, right, merged;  // ids
  };
  static bool IsLater(const Candidate& a, const Candidate& b);
  void Propose(std::int32_t position);

  const BpeMerges& merges_;
  std::vector<Symbol> symbols_;
  std::vector<Candidate> heap_;
};

}  // namespace takt::tokenizer
