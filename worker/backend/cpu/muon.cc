// SPDX-License-Identifier: Apache-2.0
#include "worker/backend/cpu/muon.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "absl/status/statusor.h"
#include "common/base/status.h"

namespace takt::backend {
namespace {

using RunOp = absl::FunctionRef<absl::Status(const Op&)>;

// Calls body(i) for all elements.
template <class Body>
void ForElements(ThreadTeam& team, std::int64_t count, const Body& body) {
  constexpr std::int64_t kPerPiece = 16384;
  team.ParallelFor((count + kPerPiece - 1) / kPerPiece, [&](std::int64_t piece, int) {
    const std::int64_t end = std::min(count, (piece + 1) * kPerPiece);
    for (std::int64_t i = piece * kPerPiece; i < end; ++i) body(i);
  });
}

// Adds the gradient to the momentum, and writes the direction of the update.
void AddGradient(const MuonUpdate& op, ThreadTeam& team, float* direction) {
  const auto momentum = static_cast<float>(op.momentum);
  const auto scale = static_cast<float>(op.gradient_scale);
  ForElements(team, op.rows * op.columns, [&](std::int64_t i) {
    const float g = op.gradient[i] * scale;
    const float m = momentum * op.m[i] + g;
    if (!op.foresees) op.m[i] = m;
    direction[i] = op.nesterov ? g + momentum * m : m;
  });
}

// Divides by the norm, so that no singular value is above 1.
absl::Status Normalize(float* x, std::int64_t count, ThreadTeam& team, RunOp run) {
  double squares = 0;
  RETURN_IF_ERROR(run(SumOfSquares{.input = x, .result = &squares, .count = count}));
  const auto scale = static_cast<float>(1 / (std::sqrt(squares) + kMuonEpsilon));
  ForElements(team, count, [&](std::int64_t i) { x[i] *= scale; });
  return absl::OkStatus();
}

// Returns an approximation of the orthogonal matrix nearest to the direction. It is in the op's
// scratch.
absl::StatusOr<const float*> Orthogonalize(const MuonUpdate& op, ThreadTeam& team, RunOp run) {
  const bool is_wide = op.rows <= op.columns;
  const std::int64_t length = std::max(op.rows, op.columns);
  const MuonScratch scratch(op);
  const std::int64_t side = scratch.side;
  float *const squared = scratch.squared, *const factor = scratch.factor;
  RETURN_IF_ERROR(Normalize(scratch.X(0), scratch.count, team, run));
  for (int iteration = 0; iteration < kMuonIterations; ++iteration) {
    const float* const x = scratch.X(iteration);
    RETURN_IF_ERROR(run(Matmul{.a = x,
                               .b = x,
                               .c = squared,
                               .a_transposed = !is_wide,
                               .b_transposed = is_wide,
                               .m = side,
                               .n = side,
                               .k = length}));
    RETURN_IF_ERROR(
        run(Matmul{.a = squared, .b = squared, .c = factor, .m = side, .n = side, .k = side}));
    ForElements(team, side * side, [&](std::int64_t i) {
      factor[i] = kMuonQuintic * factor[i] + kMuonCubic * squared[i];
    });
    for (std::int64_t i = 0; i < side; ++i) factor[i * side + i] += kMuonLinear;
    RETURN_IF_ERROR(run(Matmul{.a = is_wide ? factor : x,
                               .b = is_wide ? x : factor,
                               .c = scratch.X(iteration + 1),
                               .m = op.rows,
                               .n = op.columns,
                               .k = side}));
  }
  return scratch.X(kMuonIterations);
}

}  // namespace

absl::Status UpdateByMuon(const MuonUpdate& op, ThreadTeam& team, RunOp run) {
  const std::int64_t count = op.rows * op.columns;
  const float* const previous = op.previous != nullptr ? op.previous : op.parameter;
  AddGradient(op, team, op.scratch);
  if (op.learning_rate == 0) {  // every bit stays, as with other optimizers
    if (previous != op.parameter) std::copy_n(previous, count, op.parameter);
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const float* const direction, Orthogonalize(op, team, run));
  const double size = std::sqrt(static_cast<double>(std::max(op.rows, op.columns)));
  const auto rate = static_cast<float>(op.learning_rate * kMuonUpdateSize * size);
  // Rounding 1 - lr wd to a float would change the decay.
  const auto decay = static_cast<float>(op.learning_rate * op.weight_decay);
  ForElements(team, count, [&](std::int64_t i) {
    op.parameter[i] = previous[i] - (previous[i] * decay + rate * direction[i]);
  });
  return absl::OkStatus();
}

}  // namespace takt::backend
