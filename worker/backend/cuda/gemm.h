// SPDX-License-Identifier: Apache-2.0
// A product in the terms of cuBLASLt, as plain data: what its descriptors say, and where it reads
// and writes. It needs no device and no toolkit, so a test compares it with the library's
// reference.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "worker/backend/cuda/product.h"

namespace takt::backend::cuda {

enum class ElementType : std::uint8_t { kF32, kBf16, kE4m3, kE5m2 };

// Stored by columns, which are `stride` elements apart (the "leading dimension").
struct GemmMatrix {
  ElementType type = ElementType::kF32;
  std::int64_t rows = 0, columns = 0, stride = 0;
};

// The numbers are the library's.
enum class GemmEpilogue : std::int32_t {
  kDefault = 1,
  kBias = 4,           // z = op(a) op(b) + beta c + vector, a number for each row of d
  kGeluAux = 160,      // d = gelu(z), aux = z
  kGeluAuxBias = 164,  // the same of z with vector
  kDGelu = 192,        // d = z * gelu'(aux)
  kBGradA = 256,       // vector = sums of op(a) along k, a number for each row of d
};

// Says which values of a matrix in FP8 share a scale. The enumerators have the library's numbers.
enum class GemmScales : std::int32_t { kOne = 0, kVectors = 4, kSquares = 5 };

// d = op(a) op(b) + beta c, as the epilogue says. c has the layout of d. aux and vector have d's
// type, the only one that the library supports.
struct Gemm {
  GemmMatrix a, b, d;
  bool a_transposed = false, b_transposed = false;
  bool tf32 = false;
  bool has_scales = false;  // values of a and b are multiplied by them
  GemmScales a_scales = GemmScales::kOne, b_scales = GemmScales::kOne;
  GemmEpilogue epilogue = GemmEpilogue::kDefault;
  std::int64_t aux_stride = 0;  // between columns; a multiple of 8; 0: no aux
  int alignment = 0;            // of all pointers, in bytes

  bool has_vector() const;
};

// cuBLASLt's matrices are stored by columns, so what we store by rows is to it the transposed
// matrix. It therefore computes c^T = b^T a^T. Our b is its first operand and our n its number of
// rows. Our bias (one number a column) is its bias of one number a row, and our sums over the rows
// of b are its sums of a along k. In FP8 it reads only matrices whose numbers are stored along k,
// and adds biases in bf16 alone, so our kernels do all that follows. fused: whether the library's
// kernel does all of the shape's epilogue, or as little of it as it must.
Gemm GemmOf(const ProductShape& shape, bool fused);

// Returns the values of `fused` that GemmOf accepts, first the one to take without timings.
// compute_capability: "9.0".
std::vector<bool> GemmVariants(const ProductShape& shape, std::string_view compute_capability);

// Says how parts of a sum along k may be added up, as bits of cublasLtReductionScheme_t. They are
// never added in place, and in the output's type only if that is f32.
inline constexpr std::uint32_t kReduceInComputeType = 2, kReduceInOutputType = 4;
std::uint32_t ReductionSchemes(const Gemm& gemm);

struct GemmPointers {
  const void* a = nullptr;
  const void* b = nullptr;
  const void* c = nullptr;
  void* d = nullptr;
  void* aux = nullptr;
  const void* vector = nullptr;
  const float* a_scales = nullptr;
  const float* b_scales = nullptr;
  float beta = 0;
};

// vector: null if the gemm has one that is not the product's own: a bias that nobody has rounded
// yet, or sums that are added to others afterwards.
GemmPointers PointersOf(const Product& product, const Gemm& gemm);

// The work that is left after the gemm, for kernels of ours, in this order.
struct Remainder {
  bool bias = false;         // c += bias, or the inner one where `gelu` follows
  bool gelu = false;         // c = gelu(inner)
  bool gelu_grad = false;    // c *= gelu'(inner)
  bool column_sums = false;  // column_sums (+)= those of `summed`
  bool add_sums = false;     // column_sums += vector

  bool operator==(const Remainder&) const = default;
};
Remainder RemainderOf(const Product& product, const Gemm& gemm);

// Sums of columns that products have left beside older ones, from one product to the next. So one
// launch adds those of two (MatmulTransposedBf16::sums_may_wait). Memory is borrowed.
class WaitingSums {
 public:
  // Returns whether the product leaves sums that may wait.
  static bool Waits(const Product& product, const Gemm& gemm);

  // Called before the product. Returns what is to be added first: what waits, if the product's own
  // sums will take its place.
  AddSums Before(const Product& product, const Gemm& gemm);

  // Called after it. vector: where it has left its sums, if it has. Returns what is to be added
  // now.
  AddSums After(const Product& product, const Gemm& gemm, const void* vector);

  // Forgets what waits.
  void Drop() { waiting_ = {}; }

 private:
  AddSums::Vector waiting_;  // no count: none
};

}  // namespace takt::backend::cuda
