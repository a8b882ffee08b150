// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace takt::tokenizer {

// Finds which of its keys a text begins with. Immutable while it is used: safe from any thread
// then.
class Trie {
 public:
  static constexpr std::int32_t kRoot = 0, kNone = -1;

  // value: not negative. A key that is inserted again takes the later value.
  void Insert(std::string_view key, std::int32_t value) {
    std::int32_t node = kRoot;
    for (const char c : key) {
      const auto next = static_cast<std::int32_t>(values_.size());
      const auto [it, is_new] = edges_.emplace(EdgeOf(node, c), next);
      if (is_new) values_.push_back(kNone);
      node = it->second;
    }
    values_[static_cast<std::size_t>(node)] = value;
  }

  bool empty() const { return edges_.empty(); }

  // Returns the node that `c` leads to, or kNone.
  std::int32_t Step(std::int32_t node, char c) const {
    const auto it = edges_.find(EdgeOf(node, c));
    return it == edges_.end() ? kNone : it->second;
  }
  // Returns the value of the key that ends at `node`, or kNone if no key does.
  std::int32_t ValueAt(std::int32_t node) const { return values_[static_cast<std::size_t>(node)]; }

  // Returns the length of the longest key that `text` begins with; 0: there is none.
  std::size_t LongestKey(std::string_view text) const {
    std::size_t longest = 0;
    std::int32_t node = kRoot;
    for (std::size_t i = 0; i < text.size(); ++i) {
      node = Step(node, text[i]);
      if (node == kNone) break;
      if (ValueAt(node) != kNone) longest = i + 1;
    }
    return longest;
  }

 private:
  static std::uint64_t EdgeOf(std::int32_t node, char c) {
    return static_cast<std::uint64_t>(node) << 8 | static_cast<unsigned char>(c);
  }

  absl::flat_hash_map<std::uint64_t, std::int32_t> edges_;
  std::vector<std::int32_t> values_ = {kNone};  // by node
};

}  // namespace takt::tokenizer
