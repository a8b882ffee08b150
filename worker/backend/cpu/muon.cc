// SPDX-License-Identifier: Apache-2.0
#include "worker/backend/cpu/muon.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>

#include "absl/status/statusor.h"
#include "common/base/status.h"

namespace takt::backend {
namespace {

using RunOp = absl::FunctionRef<absl::Status(const Op&)>;

constexpr int kIterations = 5;
// This is the polynomial of Jordan et al. 2024, which takes singular values near 1 in few
// iterations.
constexpr float kLinear = 3.4445F, kCubic = -4.7750F, kQuintic = 2.0315F;
constexpr double kEpsilon = 1e-7;
// The root mean square of an update of a full matrix is this times the rate, as with AdamW
// (Liu et al. 2025).
constexpr double kUpdateSize = 0.2;

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
  const auto scale = static_cast<float>(1 / (std::sqrt(squares) + kEpsilon));
  ForElements(team, count, [&](std::int64_t i) { x[i] *= scale; });
  return absl::OkStatus();
}

// Returns nearly the orthogonal matrix next to `x`. It is in x or behind it. x: the op's scratch.
absl::StatusOr<const float*> Orthogonalize(const MuonUpdate& op, float* x, ThreadTeam& team,
                                           RunOp run) {
  const bool is_wide = op.rows <= op.columns;
  const std::int64_t side = std::min(op.rows, op.columns);
  const std::int64_t length = std::max(op.rows, op.columns);
  const std::int64_t count = op.rows * op.columns;
  float* next = x + count;
  float* const squared = next + count;          // x x^T, or x^T x: the smaller one
  float* const factor = squared + side * side;  // the polynomial of it
  RETURN_IF_ERROR(Normalize(x, count, team, run));
  for (int iteration = 0; iteration < kIterations; ++iteration) {
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
    ForElements(team, side * side,
                [&](std::int64_t i) { factor[i] = kQuintic * factor[i] + kCubic * squared[i]; });
    for (std::int64_t i = 0; i < side; ++i) factor[i * side + i] += kLinear;
    RETURN_IF_ERROR(run(Matmul{.a = is_wide ? factor : x,
                               .b = is_wide ? x : factor,
                               .c = next,
                               .m = op.rows,
                               .n = op.columns,
                               .k = side}));
    std::swap(x, next);
  }
  return x;
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
  ASSIGN_OR_RETURN(const float* const direction, Orthogonalize(op, op.scratch, team, run));
  const double size = std::sqrt(static_cast<double>(std::max(op.rows, op.columns)));
  const auto rate = static_cast<float>(op.learning_rate * kUpdateSize * size);
  // Rounding 1 - lr wd to a float would change the decay.
  const auto decay = static_cast<float>(op.learning_rate * op.weight_decay);
  ForElements(team, count, [&](std::int64_t i) {
    op.parameter[i] = previous[i] - (previous[i] * decay + rate * direction[i]);
  });
  return absl::OkStatus();
}

}  // namespace takt::backend
