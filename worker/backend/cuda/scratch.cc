// SPDX-License-Identifier: Apache-2.0
#include "worker/backend/cuda/scratch.h"

#include "common/base/status.h"
#include "worker/backend/cuda/capture.h"
#include "worker/backend/cuda/device.h"

namespace takt::backend::cuda {

absl::StatusOr<std::byte*> Scratch::AtLeast(std::int64_t bytes) {
  if (bytes <= bytes_) return data_;
  // Ops on any stream may still use the memory that is given back here, and the memory that is
  // taken.
  RETURN_IF_ERROR(WaitForDevice());
  Release();
  ASSIGN_OR_RETURN(data_, arena_.Allocate(bytes, MemoryKind::kScratch));
  bytes_ = bytes;
  return data_;
}

absl::StatusOr<std::byte*> Scratch::Zeros(std::int64_t bytes, cudaStream_t stream) {
  ASSIGN_OR_RETURN(std::byte* const data, AtLeast(bytes));
  RETURN_IF_ERROR(ToStatus(cudaMemsetAsync(data, 0, static_cast<std::size_t>(bytes), stream),
                           "zeroing scratch memory"));
  return data;
}

void Scratch::Release() {
  if (data_ != nullptr) arena_.Free(data_);
  data_ = nullptr;
  bytes_ = 0;
}

}  // namespace takt::backend::cuda
