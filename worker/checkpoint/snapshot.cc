// SPDX-License-Identifier: Apache-2.0
#include "worker/checkpoint/snapshot.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "worker/checkpoint/parallel.h"

namespace takt::checkpoint {
namespace {

constexpr std::size_t kPieceFloats = 4 << 20;  // 16 MiB: many pieces a thread, few of them

std::size_t CountFloats(std::span<const LayerState> layers) {
  std::size_t count = 0;
  for (const LayerState& layer : layers) {
    for (const ParameterState& state : layer.parameters) {
      count += state.weight.size() + state.m.size() + state.v.size();
    }
  }
  return count;
}

}  // namespace

absl::StatusOr<Snapshot> Snapshot::Create(std::span<const LayerState> live) {
  Snapshot snapshot;
  if (const std::size_t count = CountFloats(live); count > 0) {
    // MAP_POPULATE: touched now.
    void* memory = mmap(nullptr, count * sizeof(float), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (memory == MAP_FAILED) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "no memory for a snapshot of ", count * sizeof(float), " bytes: ", std::strerror(errno)));
    }
    snapshot.memory_ = {static_cast<float*>(memory), count};
  }
  std::span<float> left = snapshot.memory_;
  const auto copy_of = [&](std::span<const float> from) {
    const std::span<float> to = left.first(from.size());
    left = left.subspan(from.size());
    return to;
  };
  for (const LayerState& layer : live) {
    LayerState& copy = snapshot.copy_.emplace_back(LayerState{.layer = layer.layer});
    for (const ParameterState& state : layer.parameters) {
      copy.parameters.push_back({.parameter = state.parameter,
                                 .weight = copy_of(state.weight),
                                 .m = copy_of(state.m),
                                 .v = copy_of(state.v)});
    }
  }
  return snapshot;
}

Snapshot::Snapshot(Snapshot&& other) noexcept
    : copy_(std::move(other.copy_)), memory_(std::exchange(other.memory_, {})) {}

Snapshot& Snapshot::operator=(Snapshot&& other) noexcept {
  std::swap(copy_, other.copy_);
  std::swap(memory_, other.memory_);
  return *this;
}

Snapshot::~Snapshot() {
  if (!memory_.empty()) munmap(memory_.data(), memory_.size_bytes());
}

absl::Status Snapshot::Take(std::span<const LayerState> live, const From& from) {
  struct Piece {
    std::span<const float> from;
    float* to = nullptr;
  };
  std::vector<Piece> pieces;
  float* next = memory_.data();
  const auto copy = [&](std::span<const float> from) {
    for (std::size_t i = 0; i < from.size(); i += kPieceFloats) {
      pieces.push_back({from.subspan(i, std::min(kPieceFloats, from.size() - i)), next + i});
    }
    next += from.size();
  };
  TAKT_CHECK(CountFloats(live) == memory_.size());
  for (const LayerState& layer : live) {
    for (const ParameterState& state : layer.parameters) {
      copy(state.weight);
      copy(state.m);
      copy(state.v);
    }
  }
  if (from.device != nullptr) {
    for (const Piece& piece : pieces) {
      RETURN_IF_ERROR(
          from.device->CopyToHost(reinterpret_cast<const std::byte*>(piece.from.data()),
                                  std::as_writable_bytes(std::span(piece.to, piece.from.size()))));
    }
    return from.device->Synchronize();
  }
  return RunOnThreads(from.threads, pieces.size(), [&](std::size_t i) {
    std::memcpy(pieces[i].to, pieces[i].from.data(), pieces[i].from.size_bytes());
    return absl::OkStatus();
  });
}

}  // namespace takt::checkpoint
