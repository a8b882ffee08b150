// SPDX-License-Identifier: Apache-2.0
#include "worker/backend/discrete/device_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace takt::backend {
namespace {

absl::Status NoMemory(std::size_t bytes) {
  return absl::ResourceExhaustedError(
      absl::StrCat("no memory for a buffer of ", bytes, " bytes: ", std::strerror(errno)));
}

std::byte* Map(int file, std::size_t bytes, int protection) {
  void* const memory = mmap(nullptr, bytes, protection, MAP_SHARED, file, 0);
  return memory == MAP_FAILED ? nullptr : static_cast<std::byte*>(memory);
}

}  // namespace

absl::StatusOr<std::byte*> DeviceMemory::Allocate(std::size_t bytes) {
  const std::size_t size = std::max<std::size_t>(bytes, 1);
  const int file = memfd_create("takt-device", MFD_CLOEXEC);
  if (file < 0) return NoMemory(bytes);
  std::byte* shown = nullptr;
  std::byte* twin = nullptr;
  if (ftruncate(file, static_cast<off_t>(size)) == 0) {
    shown = Map(file, size, PROT_NONE);
    twin = Map(file, size, PROT_READ | PROT_WRITE);
  }
  const absl::Status error = NoMemory(bytes);
  close(file);
  if (shown == nullptr || twin == nullptr) {
    if (shown != nullptr) munmap(shown, size);
    if (twin != nullptr) munmap(twin, size);
    return error;
  }
  const absl::MutexLock lock(&mutex_);
  blocks_[shown] = {size, twin};
  return shown;
}

void DeviceMemory::Free(std::byte* memory) {
  const absl::MutexLock lock(&mutex_);
  const auto it = blocks_.find(memory);
  TAKT_CHECK(it != blocks_.end());
  munmap(it->second.twin, it->second.bytes);
  munmap(memory, it->second.bytes);
  blocks_.erase(it);
}

std::byte* DeviceMemory::Twin(const void* address) const {
  const auto* const byte = static_cast<const std::byte*>(address);
  const absl::MutexLock lock(&mutex_);
  const auto after = blocks_.upper_bound(byte);
  if (after == blocks_.begin()) return nullptr;
  const auto& [start, block] = *std::prev(after);
  const auto offset = static_cast<std::size_t>(byte - start);
  return offset < block.bytes ? block.twin + offset : nullptr;
}

}  // namespace takt::backend
