// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

namespace takt::train {

// The keys and values of the tokens of one sequence that went through the blocks before (F with
// TokenView::cache). F adds those of its own tokens, and whoever calls it then moves `past` on.
struct KeyValueCache {
  struct Block {
    float* keys = nullptr;  // [kv_heads, capacity, head_size], in the memory of the backend
    float* values = nullptr;
  };
  std::vector<Block> blocks;  // by the number of the block
  std::int64_t past = 0;      // tokens before those of the call, which is the position of its first
  std::int64_t capacity = 0;  // tokens that there is room for
  std::int64_t window = 0;    // as backend::CachedAttention::window
};

}  // namespace takt::train
