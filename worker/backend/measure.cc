// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
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

// Its halves are 0.5 in bf16, and it is about that itself.
constexpr float kOperand = std::bit_cast<float>(0x3F003F00);

// Returns the seconds of the op.
absl::StatusOr<double> BestOf(Backend& backend, const Op& op, const Clock& clock) {
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
  return static_cast<double>(std::max<std::int64_t>(best, 1)) * 1e-9;
}

}  // namespace

absl::StatusOr<MatmulRates> MeasureMatmuls(Backend& backend, const Clock& clock) {
  const std::int64_t size = backend.memory_is_host() ? kHostSize : kDeviceSize;
  ASSIGN_OR_RETURN(const Buffer buffer,
                   backend.Allocate(3 * size * size * sizeof(float), MemoryKind::kScratch));
  float* const a = buffer.floats();
  float* const b = a + size * size;
  float* const c = b + size * size;
  RETURN_IF_ERROR(backend.Run(Fill{.output = a, .value = kOperand, .count = 2 * size * size}));
  const Matmul f32{.a = a, .b = b, .c = c, .m = size, .n = size, .k = size};
  const MatmulBf16 bf16{.a = reinterpret_cast<const Bf16*>(a),
                        .b = reinterpret_cast<const Bf16*>(b),
                        .c = c,
                        .m = size,
                        .n = size,
                        .k = size};
  ASSIGN_OR_RETURN(const double f32_seconds, BestOf(backend, f32, clock));
  ASSIGN_OR_RETURN(const double bf16_seconds, BestOf(backend, bf16, clock));
  const double flops = 2.0 * static_cast<double>(size * size * size);
  MatmulRates rates{.f32 = flops / f32_seconds, .bf16 = flops / bf16_seconds};
  if (!backend.memory_is_host()) return rates;
  MatmulBf16 fp8 = bf16;
  fp8.a_fp8.scaling = Fp8Scaling::kTensor;
  ASSIGN_OR_RETURN(const double fp8_seconds, BestOf(backend, fp8, clock));
  rates.fp8 = flops / fp8_seconds;
  return rates;
}

}  // namespace takt::backend
