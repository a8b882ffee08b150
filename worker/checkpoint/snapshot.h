// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/backend/memory_backend.h"
#include "worker/checkpoint/layer_state.h"

namespace takt::checkpoint {

// A copy of layers' state from which a checkpoint is written while training goes on. One caller at
// a time; nobody may read layers() while Take runs.
class Snapshot {
 public:
  // Memory for a copy of what has the shapes of `live`, touched already so that Take pays for no
  // page.  device: whose memory `live` is; null: the host's. It copies to memory that it reaches
  // without a detour, if the host has so much to pin; the snapshot must not outlive its factory.
  // Errors: kResourceExhausted.
  static absl::StatusOr<Snapshot> Create(std::span<const LayerState> live,
                                         backend::MemoryBackend* device = nullptr);

  // Copies `live`, whose shapes are those of Create. Training pauses for no more than this.
  // Errors: of the device.
  struct From {
    int threads = 1;                           // that copy memory of the host
    backend::MemoryBackend* device = nullptr;  // as Create's
  };
  absl::Status Take(std::span<const LayerState> live, const From& from);

  // The copy.
  std::span<const LayerState> layers() const { return copy_; }
  std::int64_t bytes() const { return static_cast<std::int64_t>(memory_.bytes()); }

 private:
  explicit Snapshot(backend::Buffer memory) : memory_(std::move(memory)) {}

  backend::Buffer memory_;
  std::vector<LayerState> copy_;
};

}  // namespace takt::checkpoint
