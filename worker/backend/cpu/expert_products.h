// SPDX-License-Identifier: Apache-2.0
// Runs the products of experts. The rows of one expert are brought together and multiplied as an
// ordinary matrix, whose blocks the threads share.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "worker/backend/cpu/bf16_products.h"
#include "worker/backend/cpu/kernels.h"
#include "worker/backend/cpu/thread_team.h"
#include "worker/backend/ops.h"

namespace takt::backend {

// Belongs to one backend. Its memory grows to what the fullest expert needs, at most a row of each
// token. Thread: one caller at a time.
class ExpertProducts {
 public:
  // Runs a product in f32.
  using InF32 = absl::FunctionRef<absl::Status(const Matmul&)>;

  // Borrows all.
  ExpertProducts(ThreadTeam& team, const Kernels& kernels, Bf16Products& bf16)
      : team_(team), kernels_(kernels), bf16_(bf16) {}

  absl::Status Run(const ExpertMatmul& op, InF32 in_f32);
  absl::Status Run(const ExpertMatmulTransposed& op, InF32 in_f32);

 private:
  // The product of all rows of an expert with its matrix: c[rows,n] = a[rows,k] b.
  absl::Status Multiply(const ExpertMatmul& op, std::int64_t rows, const Operand& a, float* c,
                        InF32 in_f32);
  // Calls body(row, token) for the rows in the range, with row counted from the first of them.
  template <class Body>
  void ForRows(const ExpertRows& rows, Range range, std::int64_t columns, const Body& body);
  // Returns the rows of the range from a tensor that has one for each token.
  const float* Gather(const ExpertRows& rows, Range range, const float* by_token,
                      std::int64_t columns);

  ThreadTeam& team_;
  const Kernels& kernels_;
  Bf16Products& bf16_;
  std::vector<float> gathered_, products_;
};

}  // namespace takt::backend
