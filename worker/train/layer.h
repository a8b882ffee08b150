// SPDX-License-Identifier: Apache-2.0
// One layer of a stage: forward (F), gradient of its input (I) and gradients of its weights (W),
// over backend ops.
//
// Letters: B sequences of a microbatch, T context, N = B * T rows, C hidden, V vocabulary.
// Activations are [N,C] f32.
//
// Memory: a layer keeps nothing itself. What F leaves for I and W, and I for W, lies in the
// *stash*, one per microbatch in flight, whose tensors model::Layer lists. I writes gradients over
// what F no longer needs there, so that a deferred W costs no memory. What the stash does not keep
// (model::Recompute) F writes nevertheless, to memory that others use after it, and Recompute
// writes it again just before I. *Scratch* is shared by all layers of a rank and holds nothing
// between two calls, but for an I and the W right behind it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "common/layout/stage_layout.h"
#include "common/model/model.h"
#include "worker/backend/backend.h"
#include "worker/train/parameter_store.h"
#include "worker/train/stash_view.h"
#include "worker/train/tensor_observer.h"

namespace takt::train {

// Token ids and targets of one microbatch, [N] each; null on a stage that needs neither.
struct TokenView {
  const std::int32_t* tokens = nullptr;
  const std::int32_t* targets = nullptr;
  bool operator==(const TokenView&) const = default;
};

struct ForwardCall {
  backend::Backend* backend = nullptr;
  TokenView view;
  const float* input = nullptr;  // [N,C]; null for the embedding
  float* output = nullptr;       // [N,C]; null for the head
  StashMemory stash;
  bool gradient = true;        // false: evaluation, I and W will not follow
  float loss_scale = 0;        // head: 1 / scored tokens of the global batch
  double* loss_sum = nullptr;  // head: sum of the token losses of the microbatch
  TensorProbe probe;
};

struct RecomputeCall {
  backend::Backend* backend = nullptr;
  const float* input = nullptr;  // as F saw it
  StashMemory stash;
};

struct InputGradCall {
  backend::Backend* backend = nullptr;
  const float* input = nullptr;     // as F saw it
  const float* d_output = nullptr;  // [N,C]; null for the head
  float* d_input =
      nullptr;  // [N,C]; null for the embedding; may be `input`, which nobody needs afterwards
  StashMemory stash;
  std::byte* scratch = nullptr;  // laid out as LayerOptions::place says
  // This microbatch's W is the next to use scratch: what it reads may stay there. Else the stash
  // takes it.
  bool w_is_next = false;
  TensorProbe probe;
};

// Leaves a gradient that I computed in scratch to W.
inline absl::Status LeaveToWeightGrad(const InputGradCall& call, const backend::Operand& gradient,
                                      const backend::Output& in_stash, std::int64_t count) {
  if (call.w_is_next) return absl::OkStatus();
  return call.backend->Run(backend::Copy{.input = gradient, .output = in_stash, .count = count});
}

// What W takes of one microbatch.
struct WeightGradInput {
  TokenView view;
  const float* d_output = nullptr;
  StashMemory stash;             // is only read
  std::byte* scratch = nullptr;  // as I left it, if that was told w_is_next
};

struct WeightGradCall {
  backend::Backend* backend = nullptr;
  // At least one, in ascending order. Gradients of several are summed in an order of the layer's
  // own, those of one after the other in theirs.
  std::span<const WeightGradInput> microbatches;
  bool accumulate = false;  // false: the step's first microbatch overwrites the gradients

  // By microbatch: where the d_output lies, or a tensor of the stash.
  std::vector<backend::Operand> d_output() const {
    std::vector<backend::Operand> result;
    for (const WeightGradInput& each : microbatches) result.emplace_back(each.d_output);
    return result;
  }
  std::vector<backend::Operand> Stashed(const layout::StashLayout& layout,
                                        std::size_t tensor) const {
    std::vector<backend::Operand> result;
    for (const WeightGradInput& each : microbatches)
      result.push_back(StashView(layout, each.stash).Tensor(tensor));
    return result;
  }
  // What LeaveToWeightGrad left at `offset` of scratch, or in the stash.
  std::vector<backend::Operand> Left(const layout::StashLayout& layout, std::size_t tensor,
                                     std::int64_t offset) const {
    std::vector<backend::Operand> result;
    for (const WeightGradInput& each : microbatches) {
      result.push_back(each.scratch != nullptr
                           ? TensorAt(each.scratch + offset, layout[tensor].bf16)
                           : StashView(layout, each.stash).Tensor(tensor));
    }
    return result;
  }
};

// Stateless but for what it points to: one caller at a time (they share scratch).
class Layer {
 public:
  virtual ~Layer() = default;
  virtual absl::Status Forward(const ForwardCall& call) const = 0;
  // What F left and the stash did not keep, with the same bits. Not called if it keeps everything.
  virtual absl::Status Recompute(const RecomputeCall& call) const = 0;
  virtual absl::Status InputGrad(const InputGradCall& call) const = 0;
  virtual absl::Status WeightGrad(const WeightGradCall& call) const = 0;
};

struct LayerOptions {
  const model::Model& model;          // borrowed for the layer's life
  const model::Layer& layer;          // of its list
  const LayerParameters& parameters;  // the layer's own in the model's order, then the tied ones
  const layout::StageLayout::LayerPlace& place;  // of its stash and scratch
  // As backend::Rotary wants it, borrowed likewise; null in families that turn nothing.
  const float* rotary_table = nullptr;
};
std::unique_ptr<Layer> MakeLayer(const LayerOptions& options);

// One a kind.
std::unique_ptr<Layer> MakeEmbedding(const LayerOptions& options);
std::unique_ptr<Layer> MakeGpt2Block(const LayerOptions& options);
std::unique_ptr<Layer> MakeGpt2Head(const LayerOptions& options);
std::unique_ptr<Layer> MakeLlamaBlock(const LayerOptions& options);
std::unique_ptr<Layer> MakeLlamaHead(const LayerOptions& options);

}  // namespace takt::train
