// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/layout/stage_layout.h"
#include "common/model/model.h"
#include "worker/backend/backend.h"
#include "worker/train/layer.h"
#include "worker/train/parameter_store.h"

namespace takt::train {

// Where the tensors of one (stage, microbatch) are. The first four are of the precision in which
// layers pass on (model::Precisions::residual).
struct StageBuffers {
  MicrobatchId microbatch;
  TokenView view;
  const void* input = nullptr;     // null on stage 0
  void* output = nullptr;          // for F; null on the last stage
  const void* d_output = nullptr;  // for I and W; null on the last stage
  void* d_input = nullptr;         // for I; null on stage 0
  SlotRoom stash;
  // For I and W, if they are separate instructions and the stage recomputes.
  SlotRoom recomputed;
  bool operator==(const StageBuffers&) const = default;
};

// Has what the last stage's F needs for the loss, or its B if the head is sliced, and where F puts
// what is reported of a step.
struct LossCall {
  double* sum = nullptr;
  float scale = 0;  // 1 / scored tokens of the global batch, or of the microbatch
  std::int32_t* expert_counts = nullptr;  // ExpertCounts::At; null: nothing is counted
  bool operator==(const LossCall&) const = default;
};

// All are borrowed for the stage's life.
struct StageOptions {
  const model::Model& model;
  const layout::StageLayout& layout;
  const ParameterStore& parameters;
  backend::Backend& backend;
  // At least layout.scratch_bytes of every stage that shares it.
  std::byte* scratch = nullptr;
  const float* rotary_table = nullptr;  // see LayerOptions
  double auxiliary_scale = 0;           // see LayerOptions
  TensorMeetings* meetings = nullptr;   // likewise
  ContextMeetings* context = nullptr;   // likewise
  ExpertMeetings* experts = nullptr;    // likewise
  const TensorObserver* observer = nullptr;
};

// The layers of one stage in a chain. Between two layers there is an activation in the stash. I
// overwrites it with its own gradient, which is the d_output that the W of the layer below needs.
// Where layers pass on bf16, and one does not compute with it (Layer::StreamsBf16), scratch has
// what that layer reads and writes in f32. It is rounded right after the layer, and widened right
// before. What the stash does not keep is in scratch while F of a layer, or Backward of one, runs.
// If I and W are separate, it is in StageBuffers::recomputed from I to W. One caller at a time (the
// compute lane).
class Stage {
 public:
  explicit Stage(const StageOptions& options);

  const layout::StageLayout& layout() const { return layout_; }

  absl::Status Forward(const StageBuffers& buffers, const LossCall& loss);
  absl::Status InputGrad(const StageBuffers& buffers);
  // Computes W of one microbatch, or of several in ascending order. accumulate: false for the first
  // one of a step.
  absl::Status WeightGrad(std::span<const StageBuffers> microbatches, bool accumulate);
  // Computes I and W with the same bits: both of one layer, then both of the layer below. loss: of
  // a stage that slices its head (layout::StageLayout::slices_head); its F in a program that trains
  // has none.
  absl::Status Backward(const StageBuffers& buffers, bool accumulate, const LossCall& loss = {});

  // The passes layer by layer, for work between two layers. F goes through the layers in ascending
  // order, backward in descending order.
  std::size_t num_layers() const { return layers_.size(); }
  absl::Status ForwardLayer(const StageBuffers& buffers, const LossCall& loss, std::size_t i);
  absl::Status BackwardLayer(const StageBuffers& buffers, bool accumulate, std::size_t i,
                             const LossCall& loss = {});

 private:
  // with_w: as of InputGradCall.
  absl::Status InputGradLayer(const StageBuffers& buffers, std::size_t i,
                              std::optional<bool> with_w, const LossCall& loss = {});
  // follows_i: as of WeightGradCall.
  absl::Status WeightGradLayer(std::span<const StageBuffers> microbatches, bool accumulate,
                               std::size_t i, bool follows_i);
  // Returns where layer i counts the rows of its experts; null: it does not.
  std::int32_t* ExpertCountsOf(const LossCall& loss, std::size_t i) const;
  // Returns the activation that layer i passes on, or its gradient.
  std::byte* Between(const StageBuffers& buffers, std::size_t i) const;
  const void* InputOf(const StageBuffers& buffers, std::size_t i) const;
  void* OutputOf(const StageBuffers& buffers, std::size_t i) const;
  const void* DOutput(const StageBuffers& buffers, std::size_t i) const;
  void* DInput(const StageBuffers& buffers, std::size_t i) const;
  bool PassesBf16() const { return model_.precisions.residual == model::Precision::kBf16; }
  // Returns whether layer i needs in f32 what is passed on in bf16. There are two rooms for that in
  // scratch.
  bool Widens(std::size_t i) const { return PassesBf16() && !layers_[i]->StreamsBf16(); }
  enum class Room : std::uint8_t { kInput, kOutput };
  // Returns what was passed on, as layer i reads it.
  absl::StatusOr<backend::Operand> Read(std::size_t i, const void* passed_on, Room room) const;
  // Returns where layer i writes what it passes on, and passes on what it wrote there.
  backend::Output Written(std::size_t i, void* passed_on, Room room) const;
  absl::Status PassOn(std::size_t i, void* passed_on, Room room) const;
  float* At(Room room) const;
  // Returns d_output of layer i in bf16, beside that in f32; null: nobody rounded it.
  const backend::Bf16* RoundedDOutput(const StageBuffers& buffers, std::size_t i) const;
  // Returns where layer i leaves the gradient of its input in bf16; null: nowhere.
  backend::Bf16* RoundedDInput(const StageBuffers& buffers, std::size_t i) const;
  bool RoundsGradients() const;
  backend::Bf16* RoundedBelow(std::size_t i) const;
  StashMemory ForwardStash(const StageBuffers& buffers, std::size_t i) const;
  StashMemory BackwardStash(const StageBuffers& buffers, std::size_t i) const;

  const model::Model& model_;
  const layout::StageLayout& layout_;
  backend::Backend& backend_;
  std::byte* const scratch_;
  const TensorObserver* const observer_;
  const std::int64_t passed_on_;  // values that a layer passes on, where they are in bf16
  std::vector<std::unique_ptr<const Layer>> layers_;
};

}  // namespace takt::train
