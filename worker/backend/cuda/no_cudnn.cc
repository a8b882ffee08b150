// SPDX-License-Identifier: Apache-2.0
// Replaces cudnn_attention.cc where cuDNN or its front end is missing.
#include "worker/backend/cuda/attention.h"

namespace takt::backend::cuda {

absl::StatusOr<std::unique_ptr<Attention>> CreateCudnnAttention(const AttentionOptions&) {
  return nullptr;
}

std::string CudnnVersion() { return ""; }

}  // namespace takt::backend::cuda
