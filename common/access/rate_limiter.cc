// SPDX-License-Identifier: Apache-2.0
#include "common/access/rate_limiter.h"

#include <algorithm>

namespace takt::access {
namespace {

constexpr absl::Duration kSweep = absl::Minutes(1);

}  // namespace

bool RateLimiter::Allow(const std::string& key, absl::Duration now) {
  ForgetFull(now);
  Bucket& bucket = buckets_.try_emplace(key, Bucket{limit_.burst, now}).first->second;
  bucket = {.tokens = TokensAt(bucket, now), .at = now};
  if (bucket.tokens < 1) return false;
  bucket.tokens -= 1;
  return true;
}

double RateLimiter::TokensAt(const Bucket& bucket, absl::Duration now) const {
  return std::min(limit_.burst,
                  bucket.tokens + limit_.per_second * absl::ToDoubleSeconds(now - bucket.at));
}

// Forgets full buckets: a key without a bucket begins with a full one.
void RateLimiter::ForgetFull(absl::Duration now) {
  if (now - last_sweep_ < kSweep) return;
  last_sweep_ = now;
  std::erase_if(buckets_,
                [&](const auto& entry) { return TokensAt(entry.second, now) >= limit_.burst; });
}

}  // namespace takt::access
