// SPDX-License-Identifier: Apache-2.0
// The op of Muon's update. The rules of ops.h hold for it.
#pragma once

#include <algorithm>
#include <cstdint>

namespace takt::backend {

// One Muon step of one matrix with decoupled decay, for scaled gradients g (Jordan et al. 2024; the
// factor of the rate is that of Liu et al. 2025, section 2.2):
//   m = momentum m + g;  d = nesterov ? g + momentum m : m
//   p = p * (1 - lr * weight_decay) - lr * 0.2 sqrt(max(rows, columns)) * X
// X approximates the orthogonal matrix nearest to d. It begins as d / (|d| + 1e-7), and five times
//   A = X X^T;  X = (3.4445 - 4.7750 A + 2.0315 A A) X
// With more rows than columns A is X^T X, and X is multiplied from the right.
struct MuonUpdate {
  float* parameter = nullptr;       // [rows,columns], as all but scratch
  const float* previous = nullptr;  // the parameter as it was, left alone; null: in place
  const float* gradient = nullptr;
  float* m = nullptr;
  float* scratch = nullptr;  // model::MuonScratchFloats(rows, columns), which change
  std::int64_t rows = 0, columns = 0;
  double learning_rate = 0, momentum = 0.95, weight_decay = 0;
  bool nesterov = true;
  double gradient_scale = 1;
  bool foresees = false;  // m stays as it is; `parameter` is not `previous`
};

inline constexpr int kMuonIterations = 5;
// These are the coefficients of Jordan et al. 2024, which bring singular values near 1 in few
// iterations.
inline constexpr float kMuonLinear = 3.4445F, kMuonCubic = -4.7750F, kMuonQuintic = 2.0315F;
inline constexpr double kMuonEpsilon = 1e-7;
// The root mean square of a matrix's update is about this times the learning rate, as with AdamW
// (Liu et al. 2025).
inline constexpr double kMuonUpdateSize = 0.2;

// The parts of MuonUpdate::scratch.
struct MuonScratch {
  explicit MuonScratch(const MuonUpdate& op)
      : side(std::min(op.rows, op.columns)),
        count(op.rows * op.columns),
        x(op.scratch),
        squared(x + 2 * count),
        factor(squared + side * side) {}

  // Returns the place of X after this number of iterations, of which there are two in turn.
  float* X(int iterations) const { return x + iterations % 2 * count; }

  std::int64_t side;   // the shorter one
  std::int64_t count;  // rows * columns
  float* x;            // two places for X
  float* squared;      // [side,side] A
  float* factor;       // [side,side] A A, and then the polynomial
};

}  // namespace takt::backend
