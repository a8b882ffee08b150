// SPDX-License-Identifier: Apache-2.0
// The single-threaded pieces that CPU ops are cut into, one table for each instruction set.
#pragma once

#include <cstdint>
#include <vector>

#include "worker/backend/fp8.h"
#include "worker/backend/ops.h"

namespace takt::backend {

struct Range {
  std::int64_t begin = 0, end = 0;
};

// c[rows,columns] with `stride` floats between rows becomes product + bias + addend.
struct MatmulEpilogue {
  const float* product;  // may be c
  std::int64_t product_stride;
  float* c;
  const float* bias;    // may be null
  const float* addend;  // may be null; has the stride of c
  std::int64_t rows, columns, stride;
};

// Element i of the output becomes input[i] * scales[i], rounded to FP8, times inverses[i]. Kernels
// read whole vectors of scales and inverses, which are powers of two or 0.
struct Fp8Run {
  Operand input;
  Output output;  // the results are exact in either type
  std::int64_t count;
  const float* scales;
  const float* inverses;
  bool is_e5m2;
};

// The table of one instruction set; kernel_list.inc says what each entry does.
struct Kernels {
  const char* name;

#define TAKT_KERNEL(result, member, function, parameters) result(*member) parameters;
#include "worker/backend/cpu/kernel_list.inc"
};

// Returns the tables that this machine can run, best first.
std::vector<const Kernels*> RunnableKernels();

// Returns whether `kernels` are of AVX2 and this machine has nothing wider, so that oneDNN
// multiplies with AVX2, too.
bool MultipliesWithAvx2(const Kernels& kernels);

// Returns whether this machine has instructions for bf16 products beside those of `kernels`.
bool MultipliesBf16(const Kernels& kernels);

}  // namespace takt::backend
