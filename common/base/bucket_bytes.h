// SPDX-License-Identifier: Apache-2.0
// A bucket is the part of a gradient that replicas send one another at once. Plans choose its size,
// and no sum depends on it.
#pragma once

#include <bit>
#include <cstdint>

namespace takt {

// A size is a power of two between these.
inline constexpr std::int64_t kLeastBucketBytes = 128 << 10, kMostBucketBytes = 4 << 20;

// Returns whether buckets may have this size.
constexpr bool IsBucketSize(std::int64_t bytes) {
  return bytes >= kLeastBucketBytes && bytes <= kMostBucketBytes &&
         std::has_single_bit(static_cast<std::uint64_t>(bytes));
}

}  // namespace takt
