// SPDX-License-Identifier: Apache-2.0
// Counts what the GPU backend launches for an op, and the bytes that its own kernels move, without
// a GPU: own kernels by the launches of the emulator, products by what is asked of cuBLASLt.
#pragma once

#include "worker/backend/ops.h"

namespace takt::bench {

struct OpCount {
  double launches = 0;
  double elementwise_bytes = 0;  // of all kernels but products and attention
  double product_flops = 0, attention_flops = 0, attention_gradient_flops = 0;  // causal

  double flops() const { return product_flops + attention_flops + attention_gradient_flops; }
  OpCount& operator+=(const OpCount& other);
  OpCount operator*(double factor) const;
};

// cuDNN's launches for a forward, and for each part of a deterministic backward: the sums of
// gradients times outputs, the gradients, and the conversion of the queries'.
inline constexpr int kLaunchesOfAttention = 1, kLaunchesOfAttentionGradient = 3;

// The device has compute capability 9.0 and nothing was timed, so epilogues are where
// worker/backend/cuda/gemm.cc puts them first.  Thread: one caller at a time.
OpCount CountOp(const backend::Op& op);

// Returns whether the op belongs to W.
bool IsWeightGrad(const backend::Op& op);

}  // namespace takt::bench
