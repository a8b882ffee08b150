// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <limits>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "worker/backend/backend.h"

namespace takt::backend {

namespace {

constexpr std::int64_t kSize = 512;  // 0.27 GFLOP: one to three milliseconds on one core
constexpr double kFlops = 2.0 * kSize * kSize * kSize;
constexpr std::int64_t kBudgetNanos = 50'000'000;
// Even if the budget is gone: workers that start together take the cores from each other, and the
// best of a few short rounds is one that had a core to itself.
constexpr int kFewestRounds = 5;
constexpr int kMostRounds = 40;

}  // namespace

absl::StatusOr<double> MeasureMatmulFlops(Backend& backend, const Clock& clock) {
  ASSIGN_OR_RETURN(const Buffer buffer,
                   backend.Allocate(3 * kSize * kSize * sizeof(float), MemoryKind::kScratch));
  float* a = buffer.floats();
  float* b = a + kSize * kSize;
  float* c = b + kSize * kSize;
  RETURN_IF_ERROR(backend.Run(Fill{.output = a, .value = 0.5F, .count = 2 * kSize * kSize}));
  const Matmul op{.a = a, .b = b, .c = c, .m = kSize, .n = kSize, .k = kSize};
  // Not timed: the library generates its code and touches the memory for the first time.
  RETURN_IF_ERROR(backend.Run(op));
  RETURN_IF_ERROR(backend.Synchronize());
  const std::int64_t begin = clock.SteadyNanos();
  std::int64_t best = std::numeric_limits<std::int64_t>::max();
  std::int64_t now = begin;
  for (int round = 0; round < kMostRounds; ++round) {
    if (round >= kFewestRounds && now - begin >= kBudgetNanos) break;
    const std::int64_t start = now;
    RETURN_IF_ERROR(backend.Run(op));
    RETURN_IF_ERROR(backend.Synchronize());
    now = clock.SteadyNanos();
    best = std::min(best, now - start);
  }
  return kFlops / (static_cast<double>(std::max<std::int64_t>(best, 1)) * 1e-9);
}

}  // namespace takt::backend
