// SPDX-License-Identifier: Apache-2.0
#include "worker/backend/cpu/widening.h"

#include <algorithm>

namespace takt::backend {
namespace {

// Calls f(first element, count) for pieces of rows.
template <class F>
void ForPieces(ThreadTeam& team, const Extent& extent, const F& f) {
  constexpr std::int64_t kColumns = 65536;
  const std::int64_t per_row = (extent.columns + kColumns - 1) / kColumns;
  team.ParallelFor(extent.rows * per_row, [&](std::int64_t piece, int) {
    const std::int64_t column = piece % per_row * kColumns;
    f(piece / per_row * extent.stride + column, std::min(kColumns, extent.columns - column));
  });
}

}  // namespace

void Widening::Widen(Operand& tensor, const Extent& extent) {
  if (tensor.bf16 == nullptr) return;
  twins_.push_back({.data = Widened(tensor.bf16, extent), .output = nullptr, .extent = extent});
  tensor = twins_.back().data.get();
}

// An output is widened as well, because some ops change a tensor in place.
void Widening::Widen(Output& tensor, const Extent& extent) {
  if (tensor.bf16 == nullptr) return;
  twins_.push_back({.data = Widened(tensor.bf16, extent), .output = tensor.bf16, .extent = extent});
  tensor = twins_.back().data.get();
}

std::unique_ptr<float[]> Widening::Widened(const Bf16* tensor, const Extent& extent) {
  auto twin = std::make_unique_for_overwrite<float[]>(
      static_cast<std::size_t>((extent.rows - 1) * extent.stride + extent.columns));
  ForPieces(team_, extent, [&](std::int64_t first, std::int64_t count) {
    std::transform(tensor + first, tensor + first + count, twin.get() + first, ToFloat);
  });
  return twin;
}

void Widening::Round() {
  for (const Twin& twin : twins_) {
    if (twin.output == nullptr) continue;
    ForPieces(team_, twin.extent, [&](std::int64_t first, std::int64_t count) {
      kernels_.round_bf16(twin.data.get() + first, twin.output + first, {0, count});
    });
  }
}

}  // namespace takt::backend
