// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "worker/backend/backend.h"

namespace takt::backend {

absl::StatusOr<double> MeasureMatmulFlops(Backend& backend, const Clock& clock) {
  constexpr std::int64_t kSize = 512;  // 0.27 GFLOP: a millisecond or two on one core
  constexpr std::int64_t kBudgetNanos = 50'000'000;
  ASSIGN_OR_RETURN(const Buffer buffer, backend.Allocate(3 * kSize * kSize * sizeof(float)));
  float* a = buffer.floats();
  float* b = a + kSize * kSize;
  float* c = b + kSize * kSize;
  RETURN_IF_ERROR(backend.Run(Fill{.output = a, .value = 0.5F, .count = 2 * kSize * kSize}));
  const Matmul op{.a = a, .b = b, .c = c, .m = kSize, .n = kSize, .k = kSize};
  const std::int64_t begin = clock.SteadyNanos();
  std::int64_t best = 0, now = begin;
  // The first run creates what the library caches; it counts only if nothing else fits the budget.
  for (int run = 0; run < 20 && now - begin < kBudgetNanos; ++run) {
    const std::int64_t start = clock.SteadyNanos();
    RETURN_IF_ERROR(backend.Run(op));
    RETURN_IF_ERROR(backend.Synchronize());
    now = clock.SteadyNanos();
    best = run == 0 ? now - start : std::min(best, now - start);
  }
  const double flops = 2.0 * kSize * kSize * kSize;
  return flops / (static_cast<double>(std::max<std::int64_t>(best, 1)) * 1e-9);
}

}  // namespace takt::backend
