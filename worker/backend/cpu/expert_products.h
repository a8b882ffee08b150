// SPDX-License-Identifier: Apache-2.0
// Runs the products of experts, and the ops between rows and tokens. For a product, the rows of one
// expert are brought together, some hundred at a time, and multiplied as an ordinary matrix, whose
// blocks the threads share.
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

// Belongs to one backend. Its memory grows to kRowsPerPart rows of either factor. Thread: one
// caller at a time.
class ExpertProducts {
 public:
  // Results depend on this number: rows are multiplied, and gradients added up, in parts of so
  // many.
  static constexpr std::int64_t kRowsPerPart = 256;

  // Runs a product in f32.
  using InF32 = absl::FunctionRef<absl::Status(const Matmul&)>;

  // Borrows all.
  ExpertProducts(ThreadTeam& team, const Kernels& kernels, Bf16Products& bf16)
      : team_(team), kernels_(kernels), bf16_(bf16) {}

  absl::Status Run(const ExpertMatmul& op, InF32 in_f32);
  absl::Status Run(const ExpertMatmulTransposed& op, InF32 in_f32);
  void Run(const PackTokens& op);
  void Run(const AddRowsToTokens& op);

 private:
  // Each computes what the rows of a part give to the result.
  absl::Status RunPart(const ExpertMatmul& op, const ExpertMatrix& matrix, Range part,
                       InF32 in_f32);
  absl::Status RunPart(const ExpertMatmulTransposed& op, float* c, Range part, bool accumulate,
                       InF32 in_f32);
  // Computes c[rows,n] = a[rows,k] b.
  absl::Status Multiply(const ExpertMatmul& op, const ExpertMatrix& matrix, std::int64_t rows,
                        const Operand& a, float* c, InF32 in_f32);
  // Calls body(row, token) for the rows of a part, with `row` counted from the first of them.
  template <class Body>
  void ForRows(const ExpertRows& rows, Range part, std::int64_t columns, const Body& body);
  // Adds rows of one expert, which are of different tokens, to these. by_row: from the first of
  // them on.
  void AddToTokens(const ExpertRows& rows, Range part, std::int64_t columns, const float* by_row,
                   float* by_token);
  // Copies the rows of a part from a tensor that has one for each token.
  void GatherTo(const ExpertRows& rows, Range part, const float* by_token, std::int64_t columns,
                float* gathered);
  // Does the same into memory of this object, and returns it.
  const float* Gather(const ExpertRows& rows, Range part, const float* by_token,
                      std::int64_t columns);

  ThreadTeam& team_;
  const Kernels& kernels_;
  Bf16Products& bf16_;
  std::vector<float> gathered_, products_;
};

}  // namespace takt::backend
