// SPDX-License-Identifier: Apache-2.0
#include "tests/gpu/reachable_memory.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdlib>
#include <mutex>
#include <new>

namespace takt::gpu {
namespace {

// Pieces of powers of two of cache lines, each preceded by a line that tells its size; what is
// freed waits in a list of its size.
class Pool {
 public:
  void Open(std::span<std::byte> memory) {
    const std::lock_guard<std::mutex> lock(mutex_);
    begin_ = next_ = memory.data();
    end_ = begin_ + memory.size();
  }

  void* Take(std::size_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (begin_ == nullptr) return nullptr;
    const std::size_t size = std::bit_ceil(std::max(bytes, kLine));
    Piece*& free = free_[static_cast<std::size_t>(std::countr_zero(size))];
    if (free != nullptr) {
      Piece* const piece = free;
      free = piece->next;
      return Data(piece);
    }
    if (static_cast<std::size_t>(end_ - next_) < size + kLine) return nullptr;
    auto* const piece = new (next_) Piece{.size = size};
    next_ += size + kLine;
    return Data(piece);
  }

  // False: not of this pool.
  bool Give(void* data) {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto* const address = static_cast<std::byte*>(data);
    if (begin_ == nullptr || address < begin_ || address >= end_) return false;
    auto* const piece = reinterpret_cast<Piece*>(address - kLine);
    Piece*& free = free_[static_cast<std::size_t>(std::countr_zero(piece->size))];
    piece->next = free;
    free = piece;
    return true;
  }

 private:
  static constexpr std::size_t kLine = 64;
  struct Piece {
    std::size_t size = 0;
    Piece* next = nullptr;
  };
  static void* Data(Piece* piece) { return reinterpret_cast<std::byte*>(piece) + kLine; }

  std::mutex mutex_;
  std::byte *begin_ = nullptr, *next_ = nullptr, *end_ = nullptr;
  std::array<Piece*, 64> free_{};
};

constinit Pool pool;

}  // namespace

void AllocateFrom(std::span<std::byte> memory) { pool.Open(memory); }

}  // namespace takt::gpu

void* operator new(std::size_t bytes) {
  if (void* const data = takt::gpu::pool.Take(bytes)) return data;
  if (void* const data = std::malloc(std::max<std::size_t>(bytes, 1))) return data;
  throw std::bad_alloc();
}
void* operator new[](std::size_t bytes) { return operator new(bytes); }
void operator delete(void* data) noexcept {
  if (data != nullptr && !takt::gpu::pool.Give(data)) std::free(data);
}
void operator delete[](void* data) noexcept { operator delete(data); }
void operator delete(void* data, std::size_t) noexcept { operator delete(data); }
void operator delete[](void* data, std::size_t) noexcept { operator delete(data); }
