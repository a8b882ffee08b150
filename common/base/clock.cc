// SPDX-License-Identifier: Apache-2.0
#include "common/base/clock.h"

#include <chrono>

#include "absl/time/clock.h"

namespace takt {
namespace {

class RealClock final : public Clock {
 public:
  absl::Time Now() const override { return absl::Now(); }
  int64_t SteadyNanos() const override {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }
};

}  // namespace

const Clock& Clock::Real() {
  static const RealClock clock;
  return clock;
}

}  // namespace takt
