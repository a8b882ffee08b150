// SPDX-License-Identifier: Apache-2.0
#include "worker/backend/cuda/device_memory.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "worker/backend/cuda/device.h"

namespace takt::backend::cuda {

absl::StatusOr<std::byte*> DeviceMemory::Reserve(std::int64_t bytes) {
  RETURN_IF_ERROR(ToStatus(cudaSetDevice(device_), "choosing the device"));
  void* base = nullptr;
  RETURN_IF_ERROR(ToStatus(cudaMalloc(&base, static_cast<std::size_t>(bytes)),
                           absl::StrCat("reserving ", FormatMemory(bytes))));
  return static_cast<std::byte*>(base);
}

void DeviceMemory::Release(std::byte* base) {
  static_cast<void>(cudaSetDevice(device_));
  static_cast<void>(cudaFree(base));
}

std::int64_t DeviceMemory::FreeBytes() {
  std::size_t free = 0, total = 0;
  if (cudaSetDevice(device_) != cudaSuccess || cudaMemGetInfo(&free, &total) != cudaSuccess)
    return 0;
  return static_cast<std::int64_t>(free);
}

absl::Status DeviceMemory::KeepPool() {
  int supported = 0;
  RETURN_IF_ERROR(
      ToStatus(cudaDeviceGetAttribute(&supported, cudaDevAttrMemoryPoolsSupported, device_),
               "asking for the device's memory pool"));
  if (supported == 0) return absl::OkStatus();  // AllocateInOrder says so when it is called
  cudaMemPool_t pool = nullptr;
  RETURN_IF_ERROR(ToStatus(cudaDeviceGetDefaultMemPool(&pool, device_),
                           "looking for the device's memory pool"));
  std::uint64_t kept = std::numeric_limits<std::uint64_t>::max();
  return ToStatus(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &kept),
                  "setting up the device's memory pool");
}

absl::StatusOr<Buffer> DeviceMemory::AllocateInOrder(std::size_t bytes, MemoryKind kind,
                                                     cudaStream_t stream) {
  RETURN_IF_ERROR(ToStatus(cudaSetDevice(device_), "choosing the device"));
  const auto asked = static_cast<std::int64_t>(bytes);
  void* data = nullptr;
  RETURN_IF_ERROR(ToStatus(cudaMallocAsync(&data, std::max<std::size_t>(bytes, 1), stream),
                           absl::StrCat("allocating ", FormatMemory(asked))));
  const std::int64_t counted = AllocatedBytes(asked);
  if (ledger_ != nullptr) ledger_->Add(kind, counted);
  return Buffer(static_cast<std::byte*>(data), bytes,
                [device = device_, ledger = ledger_, kind, counted, stream](std::byte* p) {
                  static_cast<void>(cudaSetDevice(device));
                  static_cast<void>(cudaFreeAsync(p, stream));
                  if (ledger != nullptr) ledger->Add(kind, -counted);
                });
}

}  // namespace takt::backend::cuda
