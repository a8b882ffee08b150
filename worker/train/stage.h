// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "common/layout/stage_layout.h"
#include "common/mesh/mesh.h"
#include "common/model/model.h"
#include "worker/backend/backend.h"
#include "worker/train/layer.h"
#include "worker/train/parameter_store.h"

namespace takt::train {

// Where the tensors of one (stage, microbatch) lie.
struct StageBuffers {
  MicrobatchId microbatch;
  TokenView view;
  const float* input = nullptr;     // null on stage 0
  float* output = nullptr;          // F; null on the last stage
  const float* d_output = nullptr;  // I, W; null on the last stage
  float* d_input = nullptr;         // I; null on stage 0
  SlotRoom stash;
  // I and W, where they are apart and the stage recomputes.
  SlotRoom recomputed;
  bool operator==(const StageBuffers&) const = default;
};

// What the last stage's F gives of the loss.
struct LossCall {
  double* sum = nullptr;
  float scale = 0;       // 1 / scored tokens of the global batch, or of the microbatch
  bool gradient = true;  // false: evaluation, I and W will not follow
  bool operator==(const LossCall&) const = default;
};

struct StageOptions {
  const model::Model& model;  // all borrowed for the stage's life, but `stage`
  const mesh::Stage& stage;
  const ParameterStore& parameters;
  backend::Backend& backend;
  const float* rotary_table = nullptr;  // as LayerOptions
};

// The layers of one stage in a chain. Between two of them lies an activation in the stash, which I
// overwrites with its own gradient: the d_output that the W of the layer below needs. What the
// stash does not keep lies in scratch for as long as F of a layer, or Backward of one, runs; from
// an I to a W apart from it, in StageBuffers::recomputed. One caller at a time (the compute lane).
class Stage {
 public:
  explicit Stage(const StageOptions& options);

  const layout::StageLayout& layout() const { return layout_; }
  // At least layout().scratch_bytes of every stage that shares it; before the first pass.
  void set_scratch(std::byte* scratch) { scratch_ = scratch; }
  void set_observer(const TensorObserver* observer) { observer_ = observer; }

  absl::Status Forward(const StageBuffers& buffers, const LossCall& loss);
  absl::Status InputGrad(const StageBuffers& buffers);
  // Of one microbatch, or of several in ascending order. accumulate: false for the first of a step.
  absl::Status WeightGrad(std::span<const StageBuffers> microbatches, bool accumulate);
  // Both, with the same bits: I and W of a layer, then of the one below.
  absl::Status Backward(const StageBuffers& buffers, bool accumulate);

  // Layer by layer, for what runs between two layers: F in ascending, backward in descending order.
  std::size_t num_layers() const { return layers_.size(); }
  absl::Status ForwardLayer(const StageBuffers& buffers, const LossCall& loss, std::size_t i);
  absl::Status BackwardLayer(const StageBuffers& buffers, bool accumulate, std::size_t i);

 private:
  absl::Status InputGradLayer(const StageBuffers& buffers, std::size_t i, bool w_is_next);
  // scratch: if I of the same layer was the last to use it.
  absl::Status WeightGradLayer(std::span<const StageBuffers> microbatches, bool accumulate,
                               std::size_t i, std::byte* scratch);
  // The activation that layer i passes on, or its gradient.
  float* Between(const StageBuffers& buffers, std::size_t i) const;
  const float* InputOf(const StageBuffers& buffers, std::size_t i) const;
  const float* DOutput(const StageBuffers& buffers, std::size_t i) const;
  StashMemory ForwardStash(const StageBuffers& buffers, std::size_t i) const;
  StashMemory BackwardStash(const StageBuffers& buffers, std::size_t i) const;

  const layout::StageLayout layout_;
  backend::Backend& backend_;
  std::vector<std::unique_ptr<const Layer>> layers_;
  std::byte* scratch_ = nullptr;
  const TensorObserver* observer_ = nullptr;
};

}  // namespace takt::train
