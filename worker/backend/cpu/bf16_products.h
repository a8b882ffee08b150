// SPDX-License-Identifier: Apache-2.0
// Runs the bf16 ops. Operands are rounded once, by ranges of rows. Products are cut into blocks by
// their shape alone, and one thread computes each block.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "worker/backend/cpu/bf16_gemm.h"
#include "worker/backend/cpu/fp8_rounding.h"
#include "worker/backend/cpu/kernels.h"
#include "worker/backend/cpu/matmul.h"
#include "worker/backend/cpu/thread_team.h"
#include "worker/backend/ops.h"

namespace takt::backend {

// Belongs to one backend. Thread: one caller at a time.
class Bf16Products {
 public:
  // Borrows all of them. fp8_counters: may be null.
  Bf16Products(ThreadTeam& team, const Kernels& kernels, Fp8Counters* fp8_counters);

  // Returns b rounded to FP8 if the op does so, else b. The result is valid until the next call.
  const float* InFp8(const PackBf16& op);
  // Returns the packing of a factor that is stored in rows. Its matrices are valid until the next
  // call of this or of InFp8.
  PackBf16 PackOf(const MatmulBf16& op);
  // Reads b as packed. Computes c in f32 and leaves the activation to the caller.
  absl::Status Run(const MatmulBf16& op);
  // Leaves the column sums to the caller.
  absl::Status Run(const MatmulTransposedBf16& op);

 private:
  struct Thread {
    std::unique_ptr<Bf16Gemm> gemm;
    std::vector<float> tile;  // one block of the output, before bias and addend
  };

  // An operand as an op has it.
  struct Source {
    Operand data;
    Fp8 fp8;
    std::int64_t rows, columns, stride;
    bool sums_rows = false;  // the product sums over rows, not over columns
  };
  // An operand as products read it.
  struct Rows {
    const Bf16* data;
    std::int64_t stride;
  };
  Rows Rounded(Source source, std::vector<Bf16>& scratch);
  Rows WithoutGaps(const Source& source, std::vector<Bf16>& scratch);
  // Calls body(row, column, rows, columns, thread) for each block of the output [m,n].
  template <class Body>
  absl::Status ForBlocks(const MatmulBlocks& blocks, std::int64_t m, std::int64_t n,
                         const Body& body);

  ThreadTeam& team_;
  const Kernels& kernels_;
  Fp8Rounding fp8_;
  std::vector<Thread> threads_;
  std::vector<Bf16> a_, b_;     // rounded operands
  std::vector<float> weights_;  // in FP8 or in rows, before they are packed
  std::vector<Bf16> packed_;
};

}  // namespace takt::backend
