// SPDX-License-Identifier: Apache-2.0
// One layer of a stage: forward (F), gradient of its input (I) and gradients of its weights (W),
// over backend ops.
//
// Letters: B sequences of a microbatch, T context, N = B * T rows, C hidden, V vocabulary.
// Activations are [N,C], in f32 unless a layer takes them in bf16 (Layer::StreamsBf16). Where
// tensor parallelism splits layers, a rank has some of these rows. Where ranks share sequences, T
// and N are those of one rank.
//
// Memory: a layer itself owns none. What F leaves for I and W, and what I leaves for W, is in the
// *stash*. There is one stash for each microbatch in flight, and model::Layer lists its tensors. I
// writes gradients over values of F that are no longer needed, so that a deferred W costs no
// memory. F also writes what the stash does not keep (model::Recompute), but to memory that others
// use afterwards; Recompute writes it again just before I. All layers of a rank share *scratch*. It
// holds nothing between two calls, except between an I and the W directly after it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "common/layout/stage_layout.h"
#include "common/model/model.h"
#include "worker/backend/backend.h"
#include "worker/train/key_value_cache.h"
#include "worker/train/parameter_store.h"
#include "worker/train/stash_view.h"
#include "worker/train/tensor_observer.h"

namespace takt::train {

class ContextMeetings;
class ExpertMeetings;
class TensorMeetings;

// The terms of the loss beside the cross-entropy with the targets. By default there are none.
struct LossTerms {
  backend::TargetShares shares;  // label smoothing
  double z_loss = 0;
  bool operator==(const LossTerms&) const = default;
};

// Token ids and targets of one microbatch, [N] each, and how these are scored. They are null on a
// stage that needs neither. Where documents are apart, every stage has all of it.
struct TokenView {
  const std::int32_t* tokens = nullptr;
  const std::int32_t* targets = nullptr;
  const std::int32_t* starts = nullptr;  // of documents, as ops have them
  LossTerms terms = {};
  // Set where text is generated: the tokens follow those in the cache. F alone can do that, in f32,
  // for one sequence. Borrowed.
  const KeyValueCache* cache = nullptr;
  bool operator==(const TokenView&) const = default;
};

struct ForwardCall {
  backend::Backend* backend = nullptr;
  TokenView view;
  backend::Operand input;  // [N,C]; null for the embedding
  backend::Output output;  // [N,C]; null for the head
  StashMemory stash;
  std::byte* scratch = nullptr;  // as of InputGradCall
  float loss_scale = 0;          // head: 1 / scored tokens of the global batch
  // Head: the sum of the token losses of the microbatch. Null: a head that is sliced leaves logits
  // and loss to I.
  double* loss_sum = nullptr;
  // Blocks with experts: the rows of each expert, in host memory. Null: they are not counted.
  std::int32_t* expert_counts = nullptr;
  TensorProbe probe;
};

struct RecomputeCall {
  backend::Backend* backend = nullptr;
  TokenView view;
  backend::Operand input;  // the same as F's
  StashMemory stash;
  std::byte* scratch = nullptr;  // as of InputGradCall
};

struct InputGradCall {
  backend::Backend* backend = nullptr;
  TokenView view;
  backend::Operand input;     // the same as F's
  backend::Operand d_output;  // [N,C]; null for the head
  // [N,C]; null for the embedding. It may be `input`, which is not needed afterwards.
  backend::Output d_input;
  // [N,C] The same two in bf16, for products, where they are in f32: the layer above wrote the
  // first, this one writes the second. Null: nobody did, nobody reads it.
  const backend::Bf16* d_output_rounded = nullptr;
  backend::Bf16* d_input_rounded = nullptr;
  StashMemory stash;
  std::byte* scratch = nullptr;  // laid out as LayerOptions::place says
  // Set: this microbatch's W is the next call to use scratch, so what W reads may stay there, and I
  // may compute a part of W. Its value is W's `accumulate`.
  // Not set: what W reads must go to the stash.
  std::optional<bool> with_w;
  // As of ForwardCall, for a head that is sliced. It also computes its W.
  float loss_scale = 0;
  double* loss_sum = nullptr;
  TensorProbe probe;

  // Returns d_output as products read it.
  backend::Operand d_output_of_products() const {
    if (d_output_rounded != nullptr) return d_output_rounded;
    return d_output;
  }
};

// Leaves a gradient that I computed in scratch to W.
inline absl::Status LeaveToWeightGrad(const InputGradCall& call, const backend::Operand& gradient,
                                      const backend::Output& in_stash, std::int64_t count) {
  if (call.with_w.has_value()) return absl::OkStatus();
  return call.backend->Run(backend::Copy{.input = gradient, .output = in_stash, .count = count});
}

// W reads this of one microbatch.
struct WeightGradInput {
  TokenView view;
  backend::Operand d_output;
  const backend::Bf16* d_output_rounded = nullptr;  // as I's
  StashMemory stash;                                // only read
  std::byte* scratch = nullptr;  // as I left it, if I was called with_w; else null
};

struct WeightGradCall {
  backend::Backend* backend = nullptr;
  // At least one, in ascending order. A layer may sum the gradients of several microbatches in an
  // order of its own; the gradients of single microbatches are summed in the order of the calls.
  std::span<const WeightGradInput> microbatches;
  bool accumulate = false;  // false: the step's first microbatch overwrites the gradients
  // I was called with_w and has computed its part of W. Then there is one microbatch.
  bool follows_i = false;

  // Returns the d_output of each microbatch, as products read it.
  std::vector<backend::Operand> d_output() const {
    std::vector<backend::Operand> result;
    for (const WeightGradInput& each : microbatches) {
      result.push_back(each.d_output_rounded != nullptr ? backend::Operand(each.d_output_rounded)
                                                        : each.d_output);
    }
    return result;
  }
  // Returns a tensor of the stash of each microbatch.
  std::vector<backend::Operand> Stashed(const layout::StashLayout& layout,
                                        std::size_t tensor) const {
    std::vector<backend::Operand> result;
    for (const WeightGradInput& each : microbatches)
      result.push_back(StashView(layout, each.stash).Tensor(tensor));
    return result;
  }
  // Returns the gradient that `tensor` of each stash has, as products read it. is_rounded: it is in
  // f32, and I left it in bf16, too, at `offset` of scratch.
  std::vector<backend::Operand> Rounded(const layout::StashLayout& layout, std::size_t tensor,
                                        std::int64_t offset, bool is_rounded) const {
    if (!is_rounded || !follows_i) return Stashed(layout, tensor);
    return {TensorAt(microbatches.front().scratch + offset, /*bf16=*/true)};
  }
  // Returns what LeaveToWeightGrad left, at `offset` of scratch or in the stash.
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

// It has no state except what it points to. One caller at a time, because layers share scratch.
class Layer {
 public:
  virtual ~Layer() = default;
  virtual absl::Status Forward(const ForwardCall& call) const = 0;
  // Computes again, with the same bits, what F left and the stash did not keep. It is not called if
  // the stash keeps everything.
  virtual absl::Status Recompute(const RecomputeCall& call) const = 0;
  virtual absl::Status InputGrad(const InputGradCall& call) const = 0;
  virtual absl::Status WeightGrad(const WeightGradCall& call) const = 0;
  // Returns whether it takes what layers pass on, and its gradients, in bf16 where that is their
  // precision. Otherwise calls have all of it in f32.
  virtual bool StreamsBf16() const { return false; }
};

struct LayerOptions {
  const model::Model& model;          // borrowed for the layer's life
  const model::Layer& layer;          // one of the model's
  const LayerParameters& parameters;  // the layer's own in the model's order, then the tied ones
  const layout::StageLayout::LayerPlace& place;  // the layout of its stash and scratch
  // As backend::Rotary wants it; borrowed likewise. Null in families without rotary positions.
  const float* rotary_table = nullptr;
  // Blocks with experts: what the auxiliary loss of one sequence is multiplied by.
  double auxiliary_scale = 0;
  // Set exactly if the model's layers are split (model::TensorShare); borrowed likewise.
  TensorMeetings* meetings = nullptr;
  // Set exactly if several ranks share the sequences (model::Model::context_ranks); likewise.
  ContextMeetings* context = nullptr;
  // Set exactly if ranks share the model's experts (model::ExpertShare); borrowed likewise.
  ExpertMeetings* experts = nullptr;
};
std::unique_ptr<Layer> MakeLayer(const LayerOptions& options);

// One function for each kind of layer.
std::unique_ptr<Layer> MakeEmbedding(const LayerOptions& options);
std::unique_ptr<Layer> MakeGpt2Block(const LayerOptions& options);
std::unique_ptr<Layer> MakeGpt2Head(const LayerOptions& options);
std::unique_ptr<Layer> MakeLlamaBlock(const LayerOptions& options);
std::unique_ptr<Layer> MakeLlamaHead(const LayerOptions& options);
// These make the layers that ranks split.
std::unique_ptr<Layer> MakeSplitEmbedding(const LayerOptions& options);
std::unique_ptr<Layer> MakeSplitGpt2Block(const LayerOptions& options);
std::unique_ptr<Layer> MakeSplitGpt2Head(const LayerOptions& options);
std::unique_ptr<Layer> MakeSplitLlamaBlock(const LayerOptions& options);
std::unique_ptr<Layer> MakeSplitLlamaHead(const LayerOptions& options);

}  // namespace takt::train
