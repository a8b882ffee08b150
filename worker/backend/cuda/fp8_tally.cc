// SPDX-License-Identifier: Apache-2.0
#include "worker/backend/cuda/fp8_tally.h"

#include <cstring>

#include "common/base/status.h"
#include "worker/backend/cuda/device.h"

namespace takt::backend::cuda {

absl::StatusOr<std::unique_ptr<Fp8Tally>> Fp8Tally::Create(Arena& arena, cudaStream_t stream,
                                                           Fp8Counters* counters) {
  auto tally = std::unique_ptr<Fp8Tally>(new Fp8Tally(arena, stream, counters));
  if (counters == nullptr) return tally;
  ASSIGN_OR_RETURN(std::byte* const data,
                   tally->memory_.Zeros(static_cast<std::int64_t>(kBytes), stream));
  tally->on_device_ = reinterpret_cast<std::uint64_t*>(data);
  void* pinned = nullptr;
  RETURN_IF_ERROR(
      ToStatus(cudaHostAlloc(&pinned, kBytes, cudaHostAllocPortable), "pinning counts of FP8"));
  std::memset(pinned, 0, kBytes);
  tally->fetched_ = static_cast<std::uint64_t*>(pinned);
  return tally;
}

Fp8Tally::~Fp8Tally() {
  if (fetched_ != nullptr) static_cast<void>(cudaFreeHost(const_cast<std::uint64_t*>(fetched_)));
}

absl::Status Fp8Tally::Report() {
  if (counters_ == nullptr) return absl::OkStatus();
  AddNew();
  return ToStatus(cudaMemcpyAsync(const_cast<std::uint64_t*>(fetched_), on_device_, kBytes,
                                  cudaMemcpyDeviceToHost, stream_),
                  "fetching counts of FP8");
}

void Fp8Tally::Finish() {
  if (counters_ == nullptr) return;
  const cudaError_t error =
      cudaMemcpy(const_cast<std::uint64_t*>(fetched_), on_device_, kBytes, cudaMemcpyDeviceToHost);
  if (error == cudaSuccess) AddNew();
}

void Fp8Tally::AddNew() {
  for (const Fp8Operand operand : kFp8Operands) {
    const std::size_t first = 2 * static_cast<std::size_t>(operand);
    std::array<std::int64_t, 2> added{};
    for (std::size_t i = 0; i < added.size(); ++i) {
      const std::uint64_t now = fetched_[first + i];
      added[i] = static_cast<std::int64_t>(now - reported_[first + i]);
      reported_[first + i] = now;
    }
    counters_->Add(operand, {.overflows = added[0], .underflows = added[1]});
  }
}

}  // namespace takt::backend::cuda
