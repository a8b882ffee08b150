// SPDX-License-Identifier: Apache-2.0
// The memory of one device: the plan's prediction is reserved at once and handed out in pieces. The
// arena computes with addresses and touches no memory, so it runs without a device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/base/memory_kind.h"
#include "worker/backend/memory_ledger.h"

namespace takt::backend::cuda {

// This alignment suits cuBLASLt and vector loads best.
inline constexpr std::int64_t kArenaAlignment = 256;

// The source of an arena's memory: the device, or plain numbers in a test. Thread: one caller at
// a time.
class MemorySource {
 public:
  virtual ~MemorySource() = default;

  // Aligned to kArenaAlignment.  Errors: kResourceExhausted.
  virtual absl::StatusOr<std::byte*> Reserve(std::int64_t bytes) = 0;
  virtual void Release(std::byte* base) = 0;
  virtual std::int64_t FreeBytes() = 0;  // what Reserve might still give
};

struct ArenaOptions {
  // The memory that the plan predicts, which Create reserves. None: a region is reserved when it is
  // needed.
  MemoryBytes predicted;
  // Says what libraries will take of the device beside the arena. So much must be free after the
  // prediction was reserved.
  std::int64_t beside_bytes = 0;
  MemoryLedger* ledger = nullptr;  // borrowed, outlives the arena; null: it is not counted
};

// Thread-safe. All its memory must have come back before it ends; it then gives back its regions.
class Arena {
 public:
  // source: borrowed, outlives the arena.
  // Errors: kResourceExhausted (the prediction, or what libraries take, does not fit the device).
  static absl::StatusOr<std::unique_ptr<Arena>> Create(MemorySource& source,
                                                       const ArenaOptions& options);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Returns the smallest free piece that fits, else a new region of the source; its contents are
  // unspecified. Takes AllocatedBytes(bytes), in units of kArenaAlignment. Errors:
  // kResourceExhausted, which says what was asked for and for which purpose, what is free, what
  // holds the rest, and what the plan predicted.
  absl::StatusOr<std::byte*> Allocate(std::int64_t bytes, MemoryKind kind);

  // data: from Allocate, not freed yet.
  void Free(std::byte* data);

  // The regions taken from the source so far. Their number is constant after step 1.
  int num_reservations() const;
  struct Region {
    std::byte* base = nullptr;
    std::int64_t bytes = 0;
  };
  std::vector<Region> regions() const;
  std::int64_t reserved_bytes() const;
  MemoryBytes taken() const;
  // The number of kScratch pieces that came back so far. An address in one of them is no longer
  // valid.
  std::int64_t scratch_returns() const;

 private:
  struct Piece {
    std::int64_t bytes = 0;
    MemoryKind kind = MemoryKind::kScratch;
  };
  using FreePieces = std::map<std::byte*, std::int64_t>;

  Arena(MemorySource& source, const ArenaOptions& options) : source_(source), options_(options) {}

  absl::Status ReserveLocked(std::int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  FreePieces::iterator BestFitLocked(std::int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status NoMemoryLocked(std::int64_t bytes, MemoryKind kind, const absl::Status& reason)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AddLocked(MemoryKind kind, std::int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  MemorySource& source_;
  const ArenaOptions options_;
  mutable absl::Mutex mutex_;
  std::map<std::byte*, std::int64_t> regions_ ABSL_GUARDED_BY(mutex_);
  FreePieces free_ ABSL_GUARDED_BY(mutex_);  // never across two regions
  std::map<std::byte*, Piece> taken_ ABSL_GUARDED_BY(mutex_);
  MemoryBytes bytes_ ABSL_GUARDED_BY(mutex_);
  std::int64_t scratch_returns_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace takt::backend::cuda
