// SPDX-License-Identifier: Apache-2.0
// Tests the emulated kernels of SwiGLU where the rows of gate and up are side by side.
#include <string>

#include "worker/backend/cuda/emulator/kernel_testing.h"

namespace takt::backend::cuda {
namespace {

// Rows of whole vectors and others, of one block and of several.
TEST(CudaKernels, SwigluOfRowsSideBySide) {
  constexpr std::int64_t kRows = 3;
  for (const std::int64_t columns : {40, 37, 5000, 5004}) {
    const std::int64_t stride = 2 * columns;
    CheckBothOutputs("swiglu of rows of " + std::to_string(columns), [&](Backend& backend,
                                                                         Tensors& t, bool bf16) {
      Output both, d_both, d_output, output;
      const auto random = [&](std::int64_t count) -> Output {
        float* const values = t.Random(count, 2);
        if (!bf16) return values;
        Bf16* const rounded = t.UnsetBf16(count);
        RunOp(backend, Copy{.input = values, .output = rounded, .count = count});
        return rounded;
      };
      const auto behind = [&](const Output& tensor) -> Output {
        if (bf16) return tensor.bf16 + columns;
        return tensor.f32 + columns;
      };
      both = random(kRows * stride), d_both = random(kRows * stride);
      d_output = random(kRows * columns), output = random(kRows * columns);
      RunOp(backend, SwigluForward{.gate = both,
                                   .up = behind(both),
                                   .output = output,
                                   .rows = kRows,
                                   .columns = columns,
                                   .stride = stride});
      RunOp(backend, SwigluBackward{.gate = d_both,
                                    .up = behind(d_both),
                                    .d_output = d_output,
                                    .d_gate = d_both,
                                    .d_up = behind(d_both),
                                    .rows = kRows,
                                    .columns = columns,
                                    .stride = stride});
      Result result;
      bf16 ? result.Add(output.bf16, kRows * columns) : result.Add(output.f32, kRows * columns);
      bf16 ? result.Add(d_both.bf16, kRows * stride) : result.Add(d_both.f32, kRows * stride);
      return result;
    });
  }
}

}  // namespace
}  // namespace takt::backend::cuda
