// SPDX-License-Identifier: Apache-2.0
// The kinds of a worker's memory, as predictions, refusals and measurements name them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace takt {

enum class MemoryKind : std::uint8_t {
  kWeights,  // all versions
  kGradients,
  kOptimizer,  // its moments
  kStash,      // what F and I leave for I and W
  kMessages,   // activations and their gradients between stages
  kTokens,
  kScratch,   // of one layer's pass
  kSnapshot,  // the copy that a checkpoint is written from
  kProcess,   // code, threads, and the rings of the transport
  kCopies,    // of the state, from which a lost rank is rebuilt
};
inline constexpr std::size_t kNumMemoryKinds = 10;

constexpr std::string_view Name(MemoryKind kind) {
  constexpr std::array<std::string_view, kNumMemoryKinds> kNames = {
      "weights", "gradients", "optimizer", "stash",   "messages",
      "tokens",  "scratch",   "snapshot",  "process", "copies"};
  return kNames[static_cast<std::size_t>(kind)];
}

// A number of bytes for each kind.
class MemoryBytes {
 public:
  std::int64_t& operator[](MemoryKind kind) { return bytes_[static_cast<std::size_t>(kind)]; }
  std::int64_t operator[](MemoryKind kind) const { return bytes_[static_cast<std::size_t>(kind)]; }
  std::int64_t total() const {
    std::int64_t sum = 0;
    for (const std::int64_t bytes : bytes_) sum += bytes;
    return sum;
  }
  // Returns what is on the device where a rank computes on a GPU. The rest is in the host's memory.
  std::int64_t on_device() const {
    const MemoryBytes& all = *this;
    return total() - all[MemoryKind::kSnapshot] - all[MemoryKind::kProcess] -
           all[MemoryKind::kCopies];
  }
  bool operator==(const MemoryBytes&) const = default;

 private:
  std::array<std::int64_t, kNumMemoryKinds> bytes_{};
};

// Formats a size of memory for people: "139.8 GiB", "17 MiB", "300 B".
std::string FormatMemory(std::int64_t bytes);

// Formats the kinds, largest first: "2.1 GiB: weights 1.0 GiB, stash 0.9 GiB, ...". It leaves out
// kinds without bytes.
std::string ToString(const MemoryBytes& bytes);

inline constexpr std::int64_t kHugePageBytes = std::int64_t{2} << 20;

// Returns the bytes that an allocation takes. A large one comes in huge pages (backend.h).
constexpr std::int64_t AllocatedBytes(std::int64_t bytes) {
  return bytes < kHugePageBytes ? bytes
                                : (bytes + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
}

}  // namespace takt
