// SPDX-License-Identifier: Apache-2.0
// Computes attention by cuDNN where the kernel plan says so (attention_choice.h). Elsewhere our own
// kernels (kernels.h) compute it. This file needs no CUDA headers.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/backend/cuda/arena.h"
#include "worker/backend/ops.h"

struct CUstream_st;  // cudaStream_t points to one

namespace takt::backend::cuda {

// Belongs to one stream. Thread: its backend's.
class Attention {
 public:
  virtual ~Attention() = default;

  // Makes the kernels of an op whose layout fits (FitsCudnn). Call it before the others. Errors:
  // kFailedPrecondition (there is no kernel for the shape, or only one with a workspace above
  // kMostCudnnWorkspaceBytes); kInternal (the library cannot be used: no choice follows from it).
  virtual absl::Status Build(const AttentionForward& op) = 0;
  virtual absl::Status Build(const AttentionBackward& op) = 0;

  // They do what Backend::Prepare does.
  virtual absl::Status Prepare(const AttentionForward& op) = 0;
  virtual absl::Status Prepare(const AttentionBackward& op) = 0;

  // The op is enqueued on return.  Errors: kInternal (device fault).
  virtual absl::Status Run(const AttentionForward& op) = 0;
  virtual absl::Status Run(const AttentionBackward& op) = 0;
};

struct AttentionOptions {
  CUstream_st* stream = nullptr;
  Arena* arena = nullptr;  // borrowed, outlives the attention
  bool any_order = false;  // CudaOptions::any_order_attention
};

// Works in bf16, and always adds in the same order unless options.any_order. Null: not built in.
absl::StatusOr<std::unique_ptr<Attention>> CreateCudnnAttention(const AttentionOptions& options);

// Returns the version of the library that was found, as "9.13.0"; empty: not built in.
std::string CudnnVersion();

}  // namespace takt::backend::cuda
