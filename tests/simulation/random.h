// SPDX-License-Identifier: Apache-2.0
// Random numbers that are the same on every machine for the same seed (splitmix64, Steele et al.,
// OOPSLA 2014). The distributions of the standard library differ between libraries.
#pragma once

#include <cstdint>

#include "absl/time/time.h"

namespace takt::simulation {

// One caller at a time.
class Random final {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t Next() {
    state_ += 0x9e3779b97f4a7c15;
    std::uint64_t mixed = state_;
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111eb;
    return mixed ^ (mixed >> 31);
  }
  // Returns a number from `low` to `high`, both included. Precondition: low <= high.
  std::int64_t Between(std::int64_t low, std::int64_t high) {
    const std::uint64_t count = static_cast<std::uint64_t>(high - low) + 1;
    return low + static_cast<std::int64_t>(Next() % count);
  }
  absl::Duration Between(absl::Duration low, absl::Duration high) {
    return absl::Nanoseconds(
        Between(absl::ToInt64Nanoseconds(low), absl::ToInt64Nanoseconds(high)));
  }
  bool Chance(double probability) {
    return static_cast<double>(Next() >> 11) * 0x1.0p-53 < probability;
  }

 private:
  std::uint64_t state_;
};

// Returns a hash of two numbers.
inline std::uint64_t Mix(std::uint64_t a, std::uint64_t b) {
  return Random(a ^ (b * 0x9e3779b97f4a7c15)).Next();
}

}  // namespace takt::simulation
