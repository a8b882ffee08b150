// SPDX-License-Identifier: Apache-2.0
// Computes attention by cuDNN where it is built in, is found at run time and knows the shape.
// Elsewhere our own kernels (kernels.h) compute it.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/backend/cuda/arena.h"
#include "worker/backend/ops.h"

namespace takt::backend::cuda {

// Belongs to one stream. Thread: its backend's.
class Attention {
 public:
  virtual ~Attention() = default;

  // Ask before Run. The answer depends on the op's sizes and on the layout of its tensors.
  virtual bool CanRun(const AttentionForward& op) = 0;
  virtual bool CanRun(const AttentionBackward& op) = 0;

  // As Backend::Prepare, for ops that it can run.
  virtual absl::Status Prepare(const AttentionForward& op) = 0;
  virtual absl::Status Prepare(const AttentionBackward& op) = 0;

  // The op is enqueued on return.  Errors: kInternal (device fault).
  virtual absl::Status Run(const AttentionForward& op) = 0;
  virtual absl::Status Run(const AttentionBackward& op) = 0;
};

struct AttentionOptions {
  cudaStream_t stream = nullptr;
  Arena* arena = nullptr;  // borrowed, outlives the attention
};

// Works in bf16 and always adds in the same order. Null: not built in.
absl::StatusOr<std::unique_ptr<Attention>> CreateCudnnAttention(const AttentionOptions& options);

// Returns the version of the library that was found, as "9.13.0"; empty: not built in.
std::string CudnnVersion();

}  // namespace takt::backend::cuda
