// SPDX-License-Identifier: Apache-2.0
#include "worker/backend/discrete/device_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace takt::backend {
namespace {

absl::Status NoMemory(std::size_t bytes) {
  return absl::ResourceExhaustedError(
      absl::StrCat("no memory for a buffer of ", bytes, " bytes: ", std::strerror(errno)));
}

std::byte* Map(int file, std::size_t bytes, int protection) {
  void* const memory = mmap(nullptr, bytes, protection, MAP_SHARED | MAP_NORESERVE, file, 0);
  return memory == MAP_FAILED ? nullptr : static_cast<std::byte*>(memory);
}

// The two mappings of a file; null: there was no room.
struct Mappings {
  std::byte* shown = nullptr;
  std::byte* twin = nullptr;
};

Mappings MapTwice(int file, std::size_t bytes) {
  Mappings maps{.shown = Map(file, bytes, PROT_NONE),
                .twin = Map(file, bytes, PROT_READ | PROT_WRITE)};
  if (maps.shown != nullptr && maps.twin != nullptr) return maps;
  if (maps.shown != nullptr) munmap(maps.shown, bytes);
  if (maps.twin != nullptr) munmap(maps.twin, bytes);
  return {};
}

std::size_t WholePages(std::size_t bytes) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return (std::max<std::size_t>(bytes, 1) + page - 1) / page * page;
}

}  // namespace

DeviceMemory::~DeviceMemory() {
  const absl::MutexLock lock(&mutex_);
  if (!region_.has_value()) return;
  munmap(region_->shown, region_->bytes);
  munmap(region_->twin, region_->bytes);
  close(region_->file);
}

absl::Status DeviceMemory::ReserveRegion(std::size_t bytes) {
  const absl::MutexLock lock(&mutex_);
  TAKT_CHECK(!region_.has_value() && blocks_.empty());
  Region region{.file = memfd_create("takt-device", MFD_CLOEXEC), .bytes = WholePages(bytes)};
  if (region.file < 0) return NoMemory(bytes);
  Mappings maps;
  if (ftruncate(region.file, static_cast<off_t>(region.bytes)) == 0)
    maps = MapTwice(region.file, region.bytes);
  if (maps.shown == nullptr) {
    const absl::Status error = NoMemory(bytes);
    close(region.file);
    return error;
  }
  region.shown = maps.shown;
  region.twin = maps.twin;
  region_ = region;
  return absl::OkStatus();
}

absl::StatusOr<std::byte*> DeviceMemory::Allocate(std::size_t bytes) {
  {
    const absl::MutexLock lock(&mutex_);
    if (region_.has_value()) return AllocateInRegionLocked(bytes);
  }
  const std::size_t size = std::max<std::size_t>(bytes, 1);
  const int file = memfd_create("takt-device", MFD_CLOEXEC);
  if (file < 0) return NoMemory(bytes);
  Mappings maps;
  if (ftruncate(file, static_cast<off_t>(size)) == 0) maps = MapTwice(file, size);
  const absl::Status error = NoMemory(bytes);
  close(file);
  if (maps.shown == nullptr) return error;
  const absl::MutexLock lock(&mutex_);
  blocks_[maps.shown] = {.bytes = size, .twin = maps.twin};
  return maps.shown;
}

absl::StatusOr<std::byte*> DeviceMemory::AllocateInRegionLocked(std::size_t bytes) {
  const std::size_t pages = WholePages(bytes);
  if (region_->bytes - region_->used < pages) {
    return absl::ResourceExhaustedError(absl::StrCat("no memory for a buffer of ", bytes,
                                                     " bytes: the region has ",
                                                     region_->bytes - region_->used, " left"));
  }
  std::byte* const shown = region_->shown + region_->used;
  blocks_[shown] = {.bytes = std::max<std::size_t>(bytes, 1),
                    .twin = region_->twin + region_->used,
                    .in_region = true};
  region_->used += pages;
  return shown;
}

void DeviceMemory::Free(std::byte* memory) {
  const absl::MutexLock lock(&mutex_);
  const auto it = blocks_.find(memory);
  TAKT_CHECK(it != blocks_.end());
  const Block& block = it->second;
  if (block.in_region) {
    madvise(block.twin, WholePages(block.bytes), MADV_REMOVE);  // its pages go back
  } else {
    munmap(block.twin, block.bytes);
    munmap(memory, block.bytes);
  }
  blocks_.erase(it);
}

SharedRegion DeviceMemory::region() const {
  const absl::MutexLock lock(&mutex_);
  TAKT_CHECK(region_.has_value());
  return {.base = region_->shown,
          .bytes = region_->bytes,
          .handle = absl::StrCat("/proc/", getpid(), "/fd/", region_->file)};
}

absl::StatusOr<const std::byte*> DeviceMemory::OpenRegion(const std::string& handle) {
  const int file = open(handle.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0)
    return absl::FailedPreconditionError(absl::StrCat(handle, ": ", std::strerror(errno)));
  struct stat info {};
  Mappings maps;
  if (fstat(file, &info) == 0 && info.st_size > 0)
    maps = MapTwice(file, static_cast<std::size_t>(info.st_size));
  close(file);
  if (maps.shown == nullptr)
    return absl::FailedPreconditionError(absl::StrCat(handle, " is no memory of a device"));
  const absl::MutexLock lock(&mutex_);
  blocks_[maps.shown] = {.bytes = static_cast<std::size_t>(info.st_size), .twin = maps.twin};
  return maps.shown;
}

void DeviceMemory::CloseRegion(const std::byte* base) { Free(const_cast<std::byte*>(base)); }

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
