// SPDX-License-Identifier: Apache-2.0
// The part of the CPU's backends that needs no kernel library: memory, copies and sums, and loops
// that share pieces of an op among threads.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "worker/backend/cpu/bf16_gemm.h"
#include "worker/backend/cpu/kernels.h"
#include "worker/backend/cpu/thread_team.h"
#include "worker/backend/memory_backend.h"
#include "worker/backend/memory_ledger.h"

namespace takt::backend {

inline constexpr std::size_t kCacheLine = 64;

constexpr std::int64_t CeilDiv(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// Interface: MemoryBackend or Backend.
template <class Interface>
class HostMemory : public Interface {
 public:
  absl::StatusOr<Buffer> Allocate(std::size_t bytes, MemoryKind kind) override {
    ASSIGN_OR_RETURN(Memory memory, Take(bytes));
    const auto counted = static_cast<std::int64_t>(memory.bytes);
    if (ledger_ != nullptr) ledger_->Add(kind, counted);
    return Buffer(memory.data, bytes, [ledger = ledger_, kind, counted](std::byte* p) {
      std::free(p);
      if (ledger != nullptr) ledger->Add(kind, -counted);
    });
  }

  absl::StatusOr<Buffer> AllocateHost(std::size_t bytes) override {
    ASSIGN_OR_RETURN(const Memory memory, Take(bytes));
    return Buffer(memory.data, bytes, [](std::byte* p) { std::free(p); });
  }

  absl::Status CopyFromHost(std::span<const std::byte> source, std::byte* destination) override {
    if (!source.empty()) std::memcpy(destination, source.data(), source.size());
    return absl::OkStatus();
  }
  absl::Status CopyToHost(const std::byte* source, std::span<std::byte> destination) override {
    if (!destination.empty()) std::memcpy(destination.data(), source, destination.size());
    return absl::OkStatus();
  }
  absl::Status Synchronize() override { return absl::OkStatus(); }

  Stream* stream() override { return nullptr; }
  bool memory_is_host() const override { return true; }

 protected:
  // kernels, ledger: borrowed; ledger may be null.
  HostMemory(int threads, const Kernels& kernels, MemoryLedger* ledger)
      : kernels_(kernels), team_(threads), ledger_(ledger) {}

  // Calls f(Range) for pieces of [0, count).
  template <class F>
  void ForPieces(std::int64_t count, std::int64_t piece, const F& f) {
    team_.ParallelFor(CeilDiv(count, piece), [&](std::int64_t block, int) {
      f(Range{block * piece, std::min(count, (block + 1) * piece)});
    });
  }
  // 64 KiB of each tensor, so that half a dozen tensors fit in the L2 cache.
  static constexpr std::int64_t kElementsPerPiece = 16384;
  template <class F>
  void ForElements(std::int64_t count, const F& f) {
    ForPieces(count, kElementsPerPiece, f);
  }

  void Execute(const Copy& op) {
    const auto copy = [&](auto* output, const auto* input) {
      ForElements(op.count, [=](Range range) {
        std::copy(input + range.begin, input + range.end, output + range.begin);
      });
    };
    if (op.input.bf16 != nullptr && op.output.f32 != nullptr) {
      ForElements(op.count, [&](Range range) {
        std::transform(op.input.bf16 + range.begin, op.input.bf16 + range.end,
                       op.output.f32 + range.begin, ToFloat);
      });
    } else if (op.input.bf16 != nullptr) {
      copy(op.output.bf16, op.input.bf16);
    } else if (op.output.bf16 != nullptr) {
      ForElements(op.count,
                  [&](Range range) { kernels_.round_bf16(op.input.f32, op.output.bf16, range); });
    } else {
      copy(op.output.f32, op.input.f32);
    }
  }
  void Execute(const Add& op) {
    ForElements(op.count, [&](Range range) { kernels_.add(op, range); });
  }
  // Packs b as it is, also if the op rounds to FP8.
  void Pack(const PackBf16& op) {
    team_.ParallelFor(CeilDiv(op.n, kBf16PanelColumns), [&](std::int64_t panel, int) {
      kernels_.pack_bf16(op, {panel, panel + 1});
    });
  }

  const Kernels& kernels_;
  ThreadTeam team_;

 private:
  // Memory that std::free takes back.
  struct Memory {
    std::byte* data = nullptr;
    std::size_t bytes = 0;  // at least as many as were asked for
  };
  absl::StatusOr<Memory> Take(std::size_t bytes) {
    constexpr std::size_t kAddressSpace = std::size_t{1} << 47;
    if (bytes >= kAddressSpace) return NoMemory(bytes);
    constexpr std::size_t kHugePage = kHugePageBytes;
    const std::size_t alignment = bytes >= kHugePage ? kHugePage : kCacheLine;
    const auto taken = static_cast<std::size_t>(AllocatedBytes(static_cast<std::int64_t>(bytes)));
    const std::size_t size = std::max(alignment, (taken + alignment - 1) / alignment * alignment);
    auto* data = static_cast<std::byte*>(std::aligned_alloc(alignment, size));
    if (data == nullptr) return NoMemory(bytes);
    // Huge pages save matmuls most of their TLB misses. Zeroing in pieces touches every page now
    // instead of during a step.
    if (alignment == kHugePage) madvise(data, size, MADV_HUGEPAGE);
    ForPieces(static_cast<std::int64_t>(size), std::int64_t{4} << 20, [&](Range range) {
      std::memset(data + range.begin, 0, static_cast<std::size_t>(range.end - range.begin));
    });
    return Memory{data, size};
  }
  static absl::Status NoMemory(std::size_t bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no memory for a buffer of ", bytes, " bytes"));
  }

  MemoryLedger* const ledger_;
};

}  // namespace takt::backend
