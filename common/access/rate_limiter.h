// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>

#include "absl/time/time.h"

namespace takt::access {

struct RateLimit {
  double per_second = 200;
  double burst = 2000;
};

// A token bucket for each key. One thread at a time. It keeps buckets only of the keys that were
// used in the last burst / per_second seconds.
class RateLimiter final {
 public:
  explicit RateLimiter(RateLimit limit) : limit_(limit) {}

  // Takes a token. Returns false if there is none left. now: steady time.
  bool Allow(const std::string& key, absl::Duration now);

  std::size_t size() const { return buckets_.size(); }

 private:
  struct Bucket {
    double tokens;
    absl::Duration at;
  };
  void ForgetFull(absl::Duration now);
  double TokensAt(const Bucket& bucket, absl::Duration now) const;

  const RateLimit limit_;
  std::map<std::string, Bucket> buckets_;
  absl::Duration last_sweep_ = -absl::InfiniteDuration();
};

}  // namespace takt::access
