// SPDX-License-Identifier: Apache-2.0
#include "worker/backend/cuda/kernels/muon.h"

#include <algorithm>
#include <cstdint>

#include "common/base/status.h"

namespace takt::backend::cuda {

std::array<Matmul, 3> MuonProducts(const MuonUpdate& op, int iteration) {
  const MuonScratch scratch(op);
  const bool is_wide = op.rows <= op.columns;
  const std::int64_t side = scratch.side;
  const float* const x = scratch.X(iteration);
  return {Matmul{.a = x,
                 .b = x,
                 .c = scratch.squared,
                 .a_transposed = !is_wide,
                 .b_transposed = is_wide,
                 .m = side,
                 .n = side,
                 .k = std::max(op.rows, op.columns)},
          Matmul{.a = scratch.squared,
                 .b = scratch.squared,
                 .c = scratch.factor,
                 .m = side,
                 .n = side,
                 .k = side},
          Matmul{.a = is_wide ? scratch.factor : x,
                 .b = is_wide ? x : scratch.factor,
                 .c = scratch.X(iteration + 1),
                 .m = op.rows,
                 .n = op.columns,
                 .k = side}};
}

absl::Status UpdateByMuon(const MuonUpdate& op, const LaunchContext& context,
                          absl::FunctionRef<absl::Status(const Matmul&)> multiply) {
  Launch(op, MuonPart::kDirection, context);
  if (op.learning_rate != 0) {
    Launch(op, MuonPart::kNormalize, context);
    for (int iteration = 0; iteration < kMuonIterations; ++iteration) {
      const auto [squared, factor, next] = MuonProducts(op, iteration);
      RETURN_IF_ERROR(multiply(squared));
      RETURN_IF_ERROR(multiply(factor));
      Launch(op, MuonPart::kPolynomial, context);
      RETURN_IF_ERROR(multiply(next));
    }
  }
  Launch(op, MuonPart::kMove, context);
  return absl::OkStatus();
}

}  // namespace takt::backend::cuda
