// SPDX-License-Identifier: Apache-2.0
// Copies of the state of layers that a worker keeps in memory beyond the generation that made them,
// so that a lost rank can be rebuilt without storage.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/base/id.h"
#include "common/model/model.h"
#include "worker/backend/memory_backend.h"
#include "worker/checkpoint/layer_state.h"

namespace takt::worker_checkpoint {

// Returns the number of floats that the state of a layer has on the model's rank: of each of the
// layer's own parameters, in the model's order, what the rank has of the weight and the moments.
std::size_t StateFloats(const model::Model& model, LayerId layer);

// Returns where a parameter of the layer is in `values`, which have the state of the layer as
// StateFloats counts it.  Precondition: it is one of the layer's own, and the rank has some of it.
ParameterTarget PlaceIn(const model::Model& model, LayerId layer, const model::Parameter& parameter,
                        std::span<float> values);

// The state of some layers after one step, or of none while it is written. Where ranks split
// layers or share experts, it is that of one rank's part of them. One caller at a time.
class StateCopy {
 public:
  // Allocates memory for these layers. part: which one of them; it must have the size of the part
  // that `model` is for. Errors: kResourceExhausted.
  static absl::StatusOr<std::shared_ptr<StateCopy>> Create(const model::Model& model,
                                                           std::vector<LayerId> layers,
                                                           int part = 0);

  // The step; 0: the copy is not whole.
  StepId step() const { return step_; }
  int part() const { return part_; }
  const std::vector<LayerId>& layers() const { return layers_; }
  bool Has(LayerId layer) const { return IndexOf(layer) < layers_.size(); }
  // Precondition: it has the layer.
  std::span<float> Values(LayerId layer);
  const std::string& hash(LayerId layer) const { return hashes_[IndexOf(layer)]; }

  // From here to MarkWhole the copy is of no step.
  void MarkBroken() { step_ = StepId(0); }
  // Sets the contents to `live`, which has exactly these layers, as CopyStates does. Does not make
  // it whole.
  absl::Status Take(std::span<const LayerState> live, int threads, backend::MemoryBackend* device);
  // Hashes every layer; the copy is whole from then on.
  void MarkWhole(StepId step);
  // Returns whether the layer has the hash that it had when the copy became whole.
  bool Verify(LayerId layer);

 private:
  StateCopy() = default;
  std::size_t IndexOf(LayerId layer) const;

  StepId step_;
  int part_ = 0;
  std::vector<LayerId> layers_;
  std::vector<std::size_t> begins_;  // by layer, and the end of the last one
  std::vector<std::string> hashes_;  // by layer, from MarkWhole on
  backend::Buffer memory_;
};

using StateCopies = std::vector<std::shared_ptr<StateCopy>>;

// The copies that a worker keeps, all of one job. It outlives the generations of that job. The
// copies are shared with the rank that writes them, whose generation is over before another one
// reads them. Thread-safe.
class CopyStore {
 public:
  // Returns the copies of the job, and frees those of any other.
  StateCopies Begin(const std::string& job, const std::string& job_id);
  // Keeps these and no others. It does nothing if another job has begun, or this one was forgotten.
  void Keep(const std::string& job_id, StateCopies copies);
  // Keeps the text of the kernel plan with which the job computes. It does nothing likewise.
  void KeepKernels(const std::string& job_id, std::string text);
  // Returns that; empty: it computes without one.
  std::string kernels(const std::string& job_id) const;
  // Frees the copies of the job of this name.
  void Forget(const std::string& job);

 private:
  mutable absl::Mutex mutex_;
  std::string job_ ABSL_GUARDED_BY(mutex_);
  std::string job_id_ ABSL_GUARDED_BY(mutex_);
  StateCopies copies_ ABSL_GUARDED_BY(mutex_);
  std::string kernels_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace takt::worker_checkpoint
