// SPDX-License-Identifier: Apache-2.0
#include "worker/checkpoint/state_copy.h"

#include <algorithm>
#include <utility>

#include "common/base/status.h"
#include "common/checkpoint/hash.h"
#include "common/model/split_layers.h"
#include "worker/checkpoint/snapshot.h"

namespace takt::worker_checkpoint {

std::size_t StateFloats(const model::Model& model, LayerId layer) {
  std::int64_t count = 0;
  for (const model::Parameter& parameter : model.layers[layer.value()].parameters)
    count += parameter.state_parts() * model::ElementsHere(model, parameter);
  return static_cast<std::size_t>(count);
}

ParameterTarget PlaceIn(const model::Model& model, LayerId layer, const model::Parameter& parameter,
                        std::span<float> values) {
  for (const model::Parameter& each : model.layers[layer.value()].parameters) {
    const auto count = static_cast<std::size_t>(model::ElementsHere(model, each));
    if (&each != &parameter) {
      values = values.subspan(static_cast<std::size_t>(each.state_parts()) * count);
      continue;
    }
    ParameterTarget place{.parameter = &each};
    for (const auto part : PartsOf<ParameterTarget>(each)) {
      place.*part = values.first(count);
      values = values.subspan(count);
    }
    return place;
  }
  TAKT_CHECK(false);
}

absl::StatusOr<std::shared_ptr<StateCopy>> StateCopy::Create(const model::Model& model,
                                                             std::vector<LayerId> layers,
                                                             int part) {
  std::shared_ptr<StateCopy> copy(new StateCopy());
  copy->part_ = part;
  std::size_t floats = 0;
  for (const LayerId layer : layers) {
    copy->begins_.push_back(floats);
    floats += StateFloats(model, layer);
  }
  copy->begins_.push_back(floats);
  copy->hashes_.resize(layers.size());
  copy->layers_ = std::move(layers);
  ASSIGN_OR_RETURN(copy->memory_, PageableMemory(floats * sizeof(float)));
  return copy;
}

std::size_t StateCopy::IndexOf(LayerId layer) const {
  return static_cast<std::size_t>(std::ranges::find(layers_, layer) - layers_.begin());
}

std::span<float> StateCopy::Values(LayerId layer) {
  const std::size_t index = IndexOf(layer);
  return memory_.float_span().subspan(begins_[index], begins_[index + 1] - begins_[index]);
}

absl::Status StateCopy::Take(std::span<const LayerState> live, int threads,
                             backend::MemoryBackend* device) {
  return CopyStates(live, {.threads = threads, .device = device}, memory_.float_span());
}

void StateCopy::MarkWhole(StepId step) {
  for (std::size_t i = 0; i < layers_.size(); ++i)
    hashes_[i] = checkpoint::HashOf(std::as_bytes(Values(layers_[i])));
  step_ = step;
}

bool StateCopy::Verify(LayerId layer) {
  return checkpoint::HashOf(std::as_bytes(Values(layer))) == hash(layer);
}

StateCopies CopyStore::Begin(const std::string& job, const std::string& job_id) {
  absl::MutexLock lock(&mutex_);
  if (job_id_ != job_id) {
    copies_.clear();
    kernels_.clear();
  }
  job_ = job;
  job_id_ = job_id;
  return copies_;
}

void CopyStore::Keep(const std::string& job_id, StateCopies copies) {
  absl::MutexLock lock(&mutex_);
  if (job_id_ == job_id) copies_ = std::move(copies);
}

void CopyStore::KeepKernels(const std::string& job_id, std::string text) {
  absl::MutexLock lock(&mutex_);
  if (job_id_ == job_id) kernels_ = std::move(text);
}

std::string CopyStore::kernels(const std::string& job_id) const {
  absl::MutexLock lock(&mutex_);
  return job_id_ == job_id ? kernels_ : "";
}

void CopyStore::Forget(const std::string& job) {
  absl::MutexLock lock(&mutex_);
  if (job_ != job) return;
  job_.clear();
  job_id_.clear();
  copies_.clear();
  kernels_.clear();
}

}  // namespace takt::worker_checkpoint
