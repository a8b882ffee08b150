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

namespace takt::worker_checkpoint {
namespace {

// 16 MiB: each thread gets many pieces, but their number stays small.
constexpr std::size_t kPieceFloats = 4 << 20;

std::size_t CountFloats(std::span<const LayerState> layers) {
  std::size_t count = 0;
  for (const LayerState& layer : layers) {
    for (const ParameterState& state : layer.parameters) {
      count += state.weight.size() + state.m.size() + state.v.size();
    }
  }
  return count;
}

absl::StatusOr<backend::Buffer> MemoryFor(std::size_t bytes, backend::MemoryBackend* device) {
  if (device == nullptr) return PageableMemory(bytes);
  absl::StatusOr<backend::Buffer> pinned = device->AllocateHost(bytes);
  return absl::IsResourceExhausted(pinned.status()) ? PageableMemory(bytes) : std::move(pinned);
}

}  // namespace

absl::StatusOr<backend::Buffer> PageableMemory(std::size_t bytes) {
  if (bytes == 0) return backend::Buffer();
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (memory == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no memory for a snapshot of ", bytes, " bytes: ", std::strerror(errno)));
  }
  return backend::Buffer(static_cast<std::byte*>(memory), bytes,
                         [bytes](std::byte* p) { munmap(p, bytes); });
}

absl::StatusOr<Snapshot> Snapshot::Create(std::span<const LayerState> live,
                                          backend::MemoryBackend* device) {
  ASSIGN_OR_RETURN(backend::Buffer memory, MemoryFor(CountFloats(live) * sizeof(float), device));
  Snapshot snapshot(std::move(memory));
  std::span<float> left = snapshot.memory_.float_span();
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

absl::Status CopyStates(std::span<const LayerState> live, const CopyFrom& from,
                        std::span<float> to) {
  struct Piece {
    std::span<const float> from;
    float* to = nullptr;
  };
  std::vector<Piece> pieces;
  float* next = to.data();
  const auto copy = [&](std::span<const float> from) {
    for (std::size_t i = 0; i < from.size(); i += kPieceFloats) {
      pieces.push_back({from.subspan(i, std::min(kPieceFloats, from.size() - i)), next + i});
    }
    next += from.size();
  };
  TAKT_CHECK(CountFloats(live) == to.size());
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

}  // namespace takt::worker_checkpoint
