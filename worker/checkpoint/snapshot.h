// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/backend/memory_backend.h"
#include "worker/checkpoint/layer_state.h"

namespace takt::worker_checkpoint {

// Allocates host memory and touches all of it. Errors: kResourceExhausted.
absl::StatusOr<backend::Buffer> PageableMemory(std::size_t bytes);

// Where CopyStates copies from.
struct CopyFrom {
  int threads = 1;                           // that copy host memory
  backend::MemoryBackend* device = nullptr;  // has the memory; null: it is host memory
};

// Copies of each parameter of `live` its weight and then its moments to `to`, one after the other.
// `to` has room for exactly all elements of these, and where `live` lacks some it stays as it is.
// Errors: those of the device.
absl::Status CopyStates(std::span<const LayerState> live, const CopyFrom& from,
                        std::span<float> to);

// A copy of layers' state, from which a checkpoint is written while training goes on. One caller at
// a time. No thread may read layers() while Take runs.
class Snapshot {
 public:
  // Allocates memory for all rows of the parameters of `live`, and touches it, so that Take has no
  // page faults. device: has the memory of `live`; null: it is host memory. With a device, the copy
  // is in pinned memory if the host has enough of it; then the snapshot must not outlive the
  // device's factory.
  // Errors: kResourceExhausted.
  static absl::StatusOr<Snapshot> Create(std::span<const LayerState> live,
                                         backend::MemoryBackend* device = nullptr);

  // Copies `live`, which must have the shapes that Create saw. Training pauses only for this.
  // Errors: those of the device.
  // from.device: the one given to Create.
  absl::Status Take(std::span<const LayerState> live, const CopyFrom& from) {
    return CopyStates(live, from, memory_.float_span());
  }

  // Returns where the copy of a parameter is, for what `live` does not have of it. Create saw the
  // parameter.
  ParameterTarget PlaceOf(const model::Parameter& parameter) const;

  // The copy. It has all rows.
  std::span<const LayerState> layers() const { return copy_; }
  std::int64_t bytes() const { return static_cast<std::int64_t>(memory_.bytes()); }

 private:
  explicit Snapshot(backend::Buffer memory) : memory_(std::move(memory)) {}

  backend::Buffer memory_;
  // The same memory in two forms.
  std::vector<LayerState> copy_;
  std::vector<LayerTarget> places_;
};

}  // namespace takt::worker_checkpoint
