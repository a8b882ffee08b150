// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
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
  float* stash = nullptr;
};

// What the last stage's F needs and gives.
struct LossCall {
  float scale = 0;  // 1 / scored tokens of the global batch
  double* sum = nullptr;
  bool gradient = true;
};

// The layers of one stage in a chain. Between two of them lies an activation in the stash, which I
// overwrites with its own gradient: the d_output that the W of the layer below needs. One caller at
// a time (the compute lane).
class Stage {
 public:
  // All borrowed.  scratch: at least scratch_floats() of every stage that shares it, set before the
  // first I.
  Stage(const model::Model& model, const mesh::Stage& stage, const ParameterStore& parameters,
        backend::Backend& backend);

  std::int64_t stash_floats() const { return stash_floats_; }
  std::int64_t scratch_floats() const { return scratch_floats_; }
  void set_scratch(float* scratch) { scratch_ = scratch; }
  void set_observer(const TensorObserver* observer) { observer_ = observer; }

  absl::Status Forward(const StageBuffers& buffers, const LossCall& loss);
  absl::Status InputGrad(const StageBuffers& buffers);
  // accumulate: false for the first microbatch of a step.
  absl::Status WeightGrad(const StageBuffers& buffers, bool accumulate);

  // The same layer by layer, for what runs between two layers: F in ascending, I and W in
  // descending order, the I of a layer before its W.
  std::size_t num_layers() const { return links_.size(); }
  absl::Status ForwardLayer(const StageBuffers& buffers, const LossCall& loss, std::size_t i);
  absl::Status InputGradLayer(const StageBuffers& buffers, std::size_t i);
  absl::Status WeightGradLayer(const StageBuffers& buffers, bool accumulate, std::size_t i);

 private:
  struct Link {
    std::unique_ptr<const Layer> layer;
    std::int64_t stash = 0;   // offset of the layer's own part
    std::int64_t output = 0;  // offset of its output; unused for the last layer
  };
  const float* DOutput(const StageBuffers& buffers, std::size_t i) const;

  backend::Backend& backend_;
  std::vector<Link> links_;
  std::int64_t stash_floats_ = 0;
  std::int64_t scratch_floats_ = 0;
  float* scratch_ = nullptr;
  const TensorObserver* observer_ = nullptr;
};

}  // namespace takt::train
