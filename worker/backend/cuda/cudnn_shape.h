// SPDX-License-Identifier: Apache-2.0
// Decides which attention cuDNN can compute, from the layout of its tensors, and how many sequences
// at a time. It needs no device.
#pragma once

#include <cstdint>

#include "worker/backend/ops.h"

namespace takt::backend::cuda {

// All tensors must be in bf16, with rows and heads of whole 16-byte vectors, and every sequence
// must be one document.
bool FitsCudnn(const AttentionForward& op);
bool FitsCudnn(const AttentionBackward& op);

// A backward that adds in a fixed order stores the gradient of every score, [B,H,T,T] in bf16. So
// it computes the batch in the fewest parts that take no more than kDesiredScoreBytes each, or
// sequence by sequence. The parts have SequencesAtATime sequences; the last one may have fewer.
inline constexpr std::int64_t kDesiredScoreBytes = std::int64_t{1} << 30;
std::int64_t SequencesAtATime(const AttentionShape& shape);

// If the library's plan needs a larger workspace, our own kernels compute the shape.
inline constexpr std::int64_t kMostCudnnWorkspaceBytes = std::int64_t{8} << 30;

// Returns `count` sequences of `op` from `first` on. The tensors are in bf16.
AttentionBackward Sequences(const AttentionBackward& op, std::int64_t first, std::int64_t count);

}  // namespace takt::backend::cuda
