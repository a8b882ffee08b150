// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <limits>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "worker/backend/backend.h"

namespace takt::backend {

namespace {

// 0.27 GFLOP take one to three milliseconds on one core. 137 GFLOP take as long on a GPU.
constexpr std::int64_t kHostSize = 512, kDeviceSize = 4096;
constexpr std::int64_t kBudgetNanos = 50'000'000;
// These rounds run even when the budget is spent: workers that start together take the cores from
// each other, and the best of a few short rounds is one that had a core to itself.
constexpr int kFewestRounds = 5;
constexpr int kMostRounds = 40;

}  // namespace

absl::StatusOr<double> MeasureMatmulFlops(Backend& backend, const Clock& clock) {
  const std::int64_t size = backend.memory_is_host() ? kHostSize : kDeviceSize;
  ASSIGN_OR_RETURN(const Buffer buffer,
                   backend.Allocate(3 * size * size * sizeof(float), MemoryKind::kScratch));
  float* a = buffer.floats();
  float* b = a + size * size;
  float* c = b + size * size;
  RETURN_IF_ERROR(backend.Run(Fill{.output = a, .value = 0.5F, .count = 2 * size * size}));
  const Matmul op{.a = a, .b = b, .c = c, .m = size, .n = size, .k = size};
  // The first run is not timed: the library generates its code and touches the memory for the first
  // time.
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
  const double flops = 2.0 * static_cast<double>(size * size * size);
  return flops / (static_cast<double>(std::max<std::int64_t>(best, 1)) * 1e-9);
}

}  // namespace takt::backend
