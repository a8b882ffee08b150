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

std::int64_t ColumnsOf(const ParameterState& state) {
  return state.parameter->elements() / state.parameter->shape[0];
}

// Returns for how many elements of the parameter there is room.
std::size_t ElementsOf(const ParameterState& state) {
  const std::int64_t rows = state.room_rows > 0 ? state.room_rows : state.parameter->shape[0];
  return static_cast<std::size_t>(rows * ColumnsOf(state));
}

std::size_t CountFloats(std::span<const LayerState> layers) {
  std::size_t count = 0;
  for (const LayerState& layer : layers) {
    for (const ParameterState& state : layer.parameters)
      count += static_cast<std::size_t>(state.parameter->state_parts()) * ElementsOf(state);
  }
  return count;
}

// A part of the copy that one thread makes at a time.
struct Piece {
  std::span<const float> from;
  float* to = nullptr;
};

// to: where all rows of the parameter go.
void AddPieces(std::span<const float> from, std::span<float> to, std::size_t first_float,
               std::vector<Piece>& pieces) {
  TAKT_CHECK(first_float + from.size() <= to.size());
  to = to.subspan(first_float);
  for (std::size_t i = 0; i < from.size(); i += kPieceFloats)
    pieces.push_back({from.subspan(i, std::min(kPieceFloats, from.size() - i)), to.data() + i});
}

std::vector<Piece> PiecesOf(std::span<const LayerState> live, std::span<float> to) {
  std::vector<Piece> pieces;
  TAKT_CHECK(CountFloats(live) == to.size());
  for (const LayerState& layer : live) {
    for (const ParameterState& state : layer.parameters) {
      const std::size_t count = ElementsOf(state);
      const std::int64_t row = state.room_rows > 0 ? 0 : state.first_row;
      const auto first = static_cast<std::size_t>(row * ColumnsOf(state));
      for (const auto part : PartsOf<ParameterState>(*state.parameter)) {
        const bool is_weight = part == &ParameterState::weight;
        const std::size_t begin = first + (is_weight ? state.first_weight : state.first_moment);
        AddPieces(state.*part, to.first(count), begin, pieces);
        to = to.subspan(count);
      }
    }
  }
  return pieces;
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
  const auto take = [&left](std::size_t count) {
    const std::span<float> taken = left.first(count);
    left = left.subspan(count);
    return taken;
  };
  for (const LayerState& layer : live) {
    LayerState& copy = snapshot.copy_.emplace_back(LayerState{.layer = layer.layer});
    LayerTarget& places = snapshot.places_.emplace_back(LayerTarget{.layer = layer.layer});
    for (const ParameterState& state : layer.parameters) {
      const std::size_t count = ElementsOf(state);
      ParameterTarget place{.parameter = state.parameter};
      for (const auto part : PartsOf<ParameterTarget>(*state.parameter)) place.*part = take(count);
      copy.parameters.push_back({.parameter = place.parameter,
                                 .weight = place.weight,
                                 .m = place.m,
                                 .v = place.v,
                                 .last_update = place.last_update});
      places.parameters.push_back(place);
    }
  }
  return snapshot;
}

absl::Status CopyStates(std::span<const LayerState> live, const CopyFrom& from,
                        std::span<float> to) {
  const std::vector<Piece> pieces = PiecesOf(live, to);
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

ParameterTarget Snapshot::PlaceOf(const model::Parameter& parameter) const {
  for (const LayerTarget& layer : places_) {
    const auto place = std::ranges::find(layer.parameters, &parameter, &ParameterTarget::parameter);
    if (place != layer.parameters.end()) return *place;
  }
  TAKT_CHECK(false);
}

}  // namespace takt::worker_checkpoint
