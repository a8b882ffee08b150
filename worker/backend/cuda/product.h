// SPDX-License-Identifier: Apache-2.0
// A product of matrices as the choice of its kernel sees it: the properties that the choice depends
// on, and its name in a kernel plan. It needs no device.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "worker/backend/cuda/kernels/kernels.h"
#include "worker/backend/ops.h"

namespace takt::backend::cuda {

enum class Addend : std::uint8_t {
  kNone,
  kOutput,  // c += a b
  kOther,
};

// The work that follows a product. The plan says whether the kernel of the product does this too.
enum class Epilogue : std::uint8_t {
  kNone,
  kBias,
  kGelu,        // z = a b goes to `inner`, c = gelu(z)
  kBiasGelu,    // the same of z = a b + bias
  kGeluGrad,    // c = a b * gelu'(inner)
  kColumnSums,  // of b, to `column_sums`
};

// c[m,n] = a b (+ bias) (+ addend), all row-major; addend of c's type and laid out as c, inner
// dense.
struct ProductShape {
  std::int64_t m = 0, n = 0, k = 0;
  std::int64_t a_stride = 0, b_stride = 0, c_stride = 0;  // elements between stored rows
  bool a_transposed = false, b_transposed = false;
  bool bf16 = false;  // a and b; f32 else
  // Set if a and b are in FP8. Each is in E5M2 or else in E4M3.
  bool fp8 = false, e5m2_a = false, e5m2_b = false;
  Fp8Scales a_scales = Fp8Scales::kOne, b_scales = Fp8Scales::kOne;
  bool tf32 = false;    // operands in f32 may lose their last 13 bits
  bool bf16_c = false;  // c, addend and inner
  Epilogue epilogue = Epilogue::kNone;
  Addend addend = Addend::kNone;
  // The common alignment of all pointers, in bytes, up to what any kernel asks for. It does not
  // depend on the layout of memory, since tensors start on cache lines.
  int alignment = 0;

  bool operator==(const ProductShape&) const = default;
  template <class H>
  friend H AbslHashValue(H h, const ProductShape& s) {
    return H::combine(std::move(h), s.m, s.n, s.k, s.a_stride, s.b_stride, s.c_stride,
                      s.a_transposed, s.b_transposed, s.bf16, s.fp8, s.e5m2_a, s.e5m2_b, s.a_scales,
                      s.b_scales, s.tf32, s.bf16_c, s.epilogue, s.addend, s.alignment);
  }
};

// Formats as "matmul 2048x3072x768 bf16 a:768 b^T:768 -> bf16:3072 bias gelu +addend aligned 16".
// "+c" means that it adds to c itself. In FP8 the text has the types of both operands, "e5m2*e4m3",
// with the sizes of their blocks if the scales are of blocks, "e4m3:128*e4m3:128x128".
std::string ToString(const ProductShape& shape);

struct Product {
  ProductShape shape;
  const void* a = nullptr;
  const void* b = nullptr;
  void* c = nullptr;
  const float* bias = nullptr;
  const Bf16* rounded_bias = nullptr;  // the same; null: nobody has rounded it
  const void* addend = nullptr;
  Bf16* inner = nullptr;         // of kBiasGelu and kGelu written, of kGeluGrad read
  float* column_sums = nullptr;  // (+)=, as c
  bool sums_may_wait = false;    // of MatmulTransposedBf16
  Operand summed;                // b as it came, dense
  std::int64_t summed_rows = 0;  // of `summed`
  // In FP8: the factors of the codes of a and of b, in the device's memory.
  const float* a_inverse_scales = nullptr;
  const float* b_inverse_scales = nullptr;
};

// Returns how many of a device's multiprocessors a product fills if it leaves `reserved`, but half
// of them at least; 0 (all) if none are reserved.
int SmTarget(int multiprocessors, int reserved);

Product ProductOf(const Matmul& op, bool tf32);

// An operand in bf16 where a product reads it.
struct RoundedOperand {
  const Bf16* data = nullptr;  // null: in scratch, not made yet
  std::int64_t stride = 0;     // elements between rows
};

// Returns where an operand [.., columns] can be read: where it is, if it is in bf16 with rows that
// tensor cores can load (16 bytes), else in scratch, where zeros follow its columns. A dense
// operand gets the same row stride whether it comes in f32 or rounded, so the same kernel
// multiplies it.
RoundedOperand WhereRounded(const Operand& operand, std::int64_t columns, std::int64_t stride);

// Fast kernels need whole vectors along k and, in bf16, n. So columns of zeros are multiplied as
// well, and rows of c that are padded get more of them.
Product ProductOf(const MatmulBf16& op, const RoundedOperand& a);
// The product sums columns only where b comes in bf16, because the sums are of b as it comes.
Product ProductOf(const MatmulTransposedBf16& op, const RoundedOperand& a, const RoundedOperand& b);

// An operand in FP8 as a product reads it: the values along the sum are contiguous.
struct Fp8Codes {
  const std::uint8_t* codes = nullptr;    // null: in scratch, not made yet
  std::int64_t stride = 0;                // elements between rows, as QuantizeFp8 has them
  const float* inverse_scales = nullptr;  // as codes
};

// Returns which scales an activation or a gradient has in FP8.
Fp8Scales ScalesOf(const Fp8& fp8);

// Returns the product of an op that rounds to FP8. A weight is packed as PackedFp8.
Product Fp8ProductOf(const MatmulBf16& op, const Fp8Codes& a);
Product Fp8ProductOf(const MatmulTransposedBf16& op, const Fp8Codes& a, const Fp8Codes& b);

// Returns the same product as one or two. Where the rows of c, which lie along those of a, are not
// whole vectors, the last few are a product of their own.
std::vector<Product> CutToVectors(const Product& product);

}  // namespace takt::backend::cuda
