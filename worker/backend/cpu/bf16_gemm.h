// SPDX-License-Identifier: Apache-2.0
// Computes one block of a product of bf16 matrices on the calling thread. oneDNN's bf16 kernels do
// this where the processor has instructions for bf16; elsewhere an f32 product of the same values
// does.
#pragma once

#include <compare>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "worker/backend/ops.h"

namespace takt::backend {

// A packed matrix [k,n] consists of panels of 64 columns, one after the other; the last one is
// filled up with zeros. A panel has k rounded up to kBf16PanelDepth rows, in pairs that are
// interleaved: row 0 and row 1 of column 0, of column 1, ...; then rows 2 and 3. (oneDNN calls this
// BA16a64b2a.)
inline constexpr std::int64_t kBf16PanelColumns = 64, kBf16PanelDepth = 32;

// c [m,n] (+)= a b. Strides are those of the stored matrices, in elements.
struct Bf16Block {
  bool a_transposed = false;
  bool b_packed = false;  // then a and c are dense
  std::int64_t m = 0, n = 0, k = 0;
  std::int64_t a_stride = 0, b_stride = 0, c_stride = 0;  // b_stride: 0 if packed
  bool accumulate = false;

  auto operator<=>(const Bf16Block&) const = default;
};

// Keeps the kernels that oneDNN has generated for the blocks so far, and memory for them to work
// in. Thread: one caller at a time.
class Bf16Gemm {
 public:
  virtual ~Bf16Gemm() = default;
  // Errors: kInternal, with oneDNN's message.
  virtual absl::Status Run(const Bf16Block& block, const Bf16* a, const Bf16* b, float* c) = 0;
};

// native: the processor multiplies bf16. Only then is oneDNN's bf16 used.
std::unique_ptr<Bf16Gemm> CreateBf16Gemm(bool native);

}  // namespace takt::backend
