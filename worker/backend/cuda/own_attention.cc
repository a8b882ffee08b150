// SPDX-License-Identifier: Apache-2.0
#include "common/base/status.h"
#include "worker/backend/cuda/attention.h"
#include "worker/backend/cuda/device.h"
#include "worker/backend/cuda/kernels/kernels.h"
#include "worker/backend/cuda/scratch.h"

namespace takt::backend::cuda {
namespace {

class OwnAttention final : public Attention {
 public:
  explicit OwnAttention(const AttentionOptions& options)
      : stream_(options.stream), scratch_(*options.arena) {}

  bool CanRun(const AttentionForward& op) override { return op.shape.head_size <= kMaxHeadSize; }
  bool CanRun(const AttentionBackward& op) override { return op.shape.head_size <= kMaxHeadSize; }
  absl::Status Prepare(const AttentionForward& op) override {
    return scratch_.AtLeast(ScratchBytes(op)).status();
  }
  absl::Status Prepare(const AttentionBackward& op) override {
    return scratch_.AtLeast(ScratchBytes(op)).status();
  }
  absl::Status Run(const AttentionForward& op) override { return Enqueue(op); }
  absl::Status Run(const AttentionBackward& op) override { return Enqueue(op); }

 private:
  template <class AttentionOp>
  absl::Status Enqueue(const AttentionOp& op) {
    ASSIGN_OR_RETURN(std::byte* const scratch, scratch_.AtLeast(ScratchBytes(op)));
    Launch(op, {.stream = stream_, .scratch = scratch});
    return ToStatus(cudaGetLastError(), "enqueueing attention");
  }

  const cudaStream_t stream_;
  Scratch scratch_;
};

}  // namespace

std::unique_ptr<Attention> CreateOwnAttention(const AttentionOptions& options) {
  return std::make_unique<OwnAttention>(options);
}

}  // namespace takt::backend::cuda
