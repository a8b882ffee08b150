// SPDX-License-Identifier: Apache-2.0
// The op of Muon's update. The rules of ops.h hold for it.
#pragma once

#include <cstdint>

namespace takt::backend {

// One Muon step of one matrix with decoupled decay, for scaled gradients g (Jordan et al. 2024; the
// factor of the rate is that of Liu et al. 2025, section 2.2):
//   m = momentum m + g;  d = nesterov ? g + momentum m : m
//   p = p * (1 - lr * weight_decay) - lr * 0.2 sqrt(max(rows, columns)) * X
// X is nearly the orthogonal matrix next to d. It begins as d / (|d| + 1e-7), and five times
//   A = X X^T;  X = (3.4445 - 4.7750 A + 2.0315 A A) X
// With more rows than columns the products are the same from the other side. GPUs have
// no kernels for it.
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

}  // namespace takt::backend
