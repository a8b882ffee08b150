// SPDX-License-Identifier: Apache-2.0
// Says which attention cuDNN can compute, given how its tensors lie, and how many sequences at a
// time. It needs no device.
#pragma once

#include <cstdint>

#include "worker/backend/ops.h"

namespace takt::backend::cuda {

// All of it in bf16, rows and heads of whole 16-byte vectors.
bool FitsCudnn(const AttentionForward& op);
bool FitsCudnn(const AttentionBackward& op);

// A backward that adds in a fixed order writes down the gradient of every score, [B,H,T,T] in bf16:
// sequences are computed so many at a time (a divisor of the batch) that it takes no more than
// kDesiredScoreBytes, if that is more than one.
inline constexpr std::int64_t kDesiredScoreBytes = std::int64_t{1} << 30;
std::int64_t SequencesAtATime(const AttentionShape& shape);

// If the library's plan needs a larger workspace, our own kernels compute the shape.
inline constexpr std::int64_t kMostCudnnWorkspaceBytes = std::int64_t{8} << 30;

// `count` sequences of `op` from `first` on. In bf16.
AttentionBackward Sequences(const AttentionBackward& op, std::int64_t first, std::int64_t count);

}  // namespace takt::backend::cuda
