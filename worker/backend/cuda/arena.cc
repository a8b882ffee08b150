// SPDX-License-Identifier: Apache-2.0
#include "worker/backend/cuda/arena.h"

#include <algorithm>
#include <iterator>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace takt::backend::cuda {
namespace {

// This is small enough to waste little, and large enough that small buffers share a region.
constexpr std::int64_t kRegionBytes = std::int64_t{64} << 20;

constexpr char kFix[] = "use more stages, smaller microbatches or parallelism.recompute";

std::int64_t RoundUp(std::int64_t bytes, std::int64_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Arena>> Arena::Create(MemorySource& source,
                                                     const ArenaOptions& options) {
  auto arena = std::unique_ptr<Arena>(new Arena(source, options));
  const std::int64_t predicted = options.predicted.total();
  if (predicted == 0) return arena;
  absl::MutexLock lock(&arena->mutex_);
  if (const absl::Status status = arena->ReserveLocked(predicted); !status.ok()) {
    return absl::Status(
        status.code(),
        absl::StrCat("the plan's memory does not fit the device: it predicts ",
                     ToString(options.predicted), "; ", FormatMemory(source.FreeBytes()),
                     " are free (", status.message(), "); ", std::string(kFix)));
  }
  if (const std::int64_t free = source.FreeBytes(); free < options.beside_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the device's libraries do not fit beside the plan's memory: they take about ",
                     FormatMemory(options.beside_bytes), ", and of the device ", FormatMemory(free),
                     " are free after the ", FormatMemory(predicted), " that the plan predicts; ",
                     std::string(kFix)));
  }
  return arena;
}

Arena::~Arena() {
  absl::MutexLock lock(&mutex_);
  for (const auto& [base, bytes] : regions_) source_.Release(base);
}

absl::StatusOr<std::byte*> Arena::Allocate(std::int64_t bytes, MemoryKind kind) {
  // A piece of zero bytes has an address of its own, too.
  const std::int64_t size =
      RoundUp(std::max<std::int64_t>(AllocatedBytes(bytes), 1), kArenaAlignment);
  absl::MutexLock lock(&mutex_);
  auto fit = BestFitLocked(size);
  if (fit == free_.end()) {
    if (const absl::Status status = ReserveLocked(size); !status.ok()) {
      return NoMemoryLocked(size, kind, status);
    }
    fit = BestFitLocked(size);
  }
  const auto [data, available] = *fit;
  free_.erase(fit);
  if (available > size) free_.emplace(data + size, available - size);
  taken_.emplace(data, Piece{.bytes = size, .kind = kind});
  AddLocked(kind, size);
  return data;
}

void Arena::Free(std::byte* data) {
  absl::MutexLock lock(&mutex_);
  const auto it = taken_.find(data);
  if (it == taken_.end()) return;
  std::int64_t bytes = it->second.bytes;
  AddLocked(it->second.kind, -bytes);
  if (it->second.kind == MemoryKind::kScratch) ++scratch_returns_;
  taken_.erase(it);
  // Joins the piece with its free neighbours. Neighbours in `free_` may be of two regions that lie
  // side by side, so pieces are not joined across the start of a region.
  auto next = free_.lower_bound(data);
  if (next != free_.end() && next->first == data + bytes && !regions_.contains(next->first)) {
    bytes += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin() && !regions_.contains(data)) {
    const auto previous = std::prev(next);
    if (previous->first + previous->second == data) {
      previous->second += bytes;
      return;
    }
  }
  free_.emplace(data, bytes);
}

int Arena::num_reservations() const {
  absl::MutexLock lock(&mutex_);
  return static_cast<int>(regions_.size());
}

std::vector<Arena::Region> Arena::regions() const {
  absl::MutexLock lock(&mutex_);
  std::vector<Region> regions;
  for (const auto& [base, bytes] : regions_) regions.push_back({.base = base, .bytes = bytes});
  return regions;
}

std::int64_t Arena::reserved_bytes() const {
  absl::MutexLock lock(&mutex_);
  std::int64_t sum = 0;
  for (const auto& [base, bytes] : regions_) sum += bytes;
  return sum;
}

MemoryBytes Arena::taken() const {
  absl::MutexLock lock(&mutex_);
  return bytes_;
}

std::int64_t Arena::scratch_returns() const {
  absl::MutexLock lock(&mutex_);
  return scratch_returns_;
}

absl::Status Arena::ReserveLocked(std::int64_t bytes) {
  // Large pieces, and those that nearly fill the device, get just what they need.
  std::int64_t size = std::max(RoundUp(bytes, kHugePageBytes), kRegionBytes);
  absl::StatusOr<std::byte*> base = source_.Reserve(size);
  if (!base.ok() && size > bytes) {
    size = RoundUp(bytes, kArenaAlignment);
    base = source_.Reserve(size);
  }
  if (!base.ok()) return base.status();
  regions_.emplace(*base, size);
  free_.emplace(*base, size);
  return absl::OkStatus();
}

Arena::FreePieces::iterator Arena::BestFitLocked(std::int64_t bytes) {
  auto best = free_.end();
  for (auto it = free_.begin(); it != free_.end(); ++it) {
    if (it->second >= bytes && (best == free_.end() || it->second < best->second)) best = it;
  }
  return best;
}

absl::Status Arena::NoMemoryLocked(std::int64_t bytes, MemoryKind kind,
                                   const absl::Status& reason) {
  std::int64_t largest = 0;
  for (const auto& [data, size] : free_) largest = std::max(largest, size);
  const std::string predicted =
      options_.predicted.total() == 0
          ? "no plan predicted what is needed"
          : absl::StrCat("the plan predicted ", ToString(options_.predicted));
  return absl::Status(
      reason.code(),
      absl::StrCat("no device memory for ", FormatMemory(bytes), " of ", std::string(Name(kind)),
                   ": the largest free piece of ours has ", FormatMemory(largest),
                   ", the device has ", FormatMemory(source_.FreeBytes()), " more (",
                   reason.message(), "); we hold ", ToString(bytes_), "; ", predicted));
}

void Arena::AddLocked(MemoryKind kind, std::int64_t bytes) {
  bytes_[kind] += bytes;
  if (options_.ledger != nullptr) options_.ledger->Add(kind, bytes);
}

}  // namespace takt::backend::cuda
