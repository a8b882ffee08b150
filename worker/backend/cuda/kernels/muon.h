// SPDX-License-Identifier: Apache-2.0
// Muon's update as a sequence of our own launches and of products, which a library computes.
#pragma once

#include <array>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "worker/backend/cuda/kernels/kernels.h"
#include "worker/backend/ops.h"

namespace takt::backend::cuda {

// Returns the products of an iteration, counted from 0, in order: A [side,side], the square of X
// [rows,columns]; A A; and the next X. The polynomial is computed between the second and the third.
// Iterations that differ by two have the same products. Source: Jordan et al. 2024 (muon_update.h).
std::array<Matmul, 3> MuonProducts(const MuonUpdate& op, int iteration);

// Enqueues the update. It calls `multiply` for each product in its turn, and returns the first
// error of these calls. The context's scratch has at least ScratchBytes(op).
absl::Status UpdateByMuon(const MuonUpdate& op, const LaunchContext& context,
                          absl::FunctionRef<absl::Status(const Matmul&)> multiply);

}  // namespace takt::backend::cuda
