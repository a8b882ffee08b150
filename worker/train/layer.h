// SPDX-License-Identifier: Apache-2.0
// One layer of a stage: forward (F), gradient of its input (I) and gradients of its weights (W),
// over backend ops.
//
// Letters: B sequences of a microbatch, T context, N = B * T rows, C hidden, V vocabulary.
// Activations are [N,C] f32.
//
// Memory: a layer keeps nothing itself. What F leaves for I and W, and I for W, lies in the
// *stash*, one per microbatch in flight, whose layout the layer declares once. I writes gradients
// over what F no longer needs there, so that a deferred W costs no memory. *Scratch* is shared by
// all layers of a rank and holds nothing between two calls.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "common/model/model.h"
#include "worker/backend/backend.h"
#include "worker/train/parameter_store.h"
#include "worker/train/tensor_observer.h"

namespace takt::train {

// Token ids and targets of one microbatch, [N] each; null on a stage that needs neither.
struct TokenView {
  const std::int32_t* tokens = nullptr;
  const std::int32_t* targets = nullptr;
};

struct ForwardCall {
  backend::Backend* backend = nullptr;
  TokenView view;
  const float* input = nullptr;  // [N,C]; null for the embedding
  float* output = nullptr;       // [N,C]; null for the head
  float* stash = nullptr;
  bool gradient = true;        // false: evaluation, I and W will not follow
  float loss_scale = 0;        // head: 1 / scored tokens of the global batch
  double* loss_sum = nullptr;  // head: sum of the token losses of the microbatch
  TensorProbe probe;
};

struct InputGradCall {
  backend::Backend* backend = nullptr;
  const float* input = nullptr;     // as F saw it
  const float* d_output = nullptr;  // [N,C]; null for the head
  float* d_input =
      nullptr;  // [N,C]; null for the embedding; may be `input`, which nobody needs afterwards
  float* stash = nullptr;
  float* scratch = nullptr;
  TensorProbe probe;
};

struct WeightGradCall {
  backend::Backend* backend = nullptr;
  TokenView view;
  const float* d_output = nullptr;
  const float* stash = nullptr;
  bool accumulate = false;  // false: the step's first microbatch overwrites the gradients
};

// Stateless but for what it points to: one caller at a time (they share scratch).
class Layer {
 public:
  virtual ~Layer() = default;
  virtual std::int64_t stash_floats() const = 0;
  virtual std::int64_t scratch_floats() const = 0;
  virtual absl::Status Forward(const ForwardCall& call) const = 0;
  virtual absl::Status InputGrad(const InputGradCall& call) const = 0;
  virtual absl::Status WeightGrad(const WeightGradCall& call) const = 0;
};

// `parameters`: the layer's own in the model's order, then the tied ones; borrowed.
std::unique_ptr<Layer> MakeLayer(const model::Model& model, LayerId id,
                                 const LayerParameters& parameters);

// One a kind.
std::unique_ptr<Layer> MakeEmbedding(const model::Model& model, const LayerParameters& parameters);
std::unique_ptr<Layer> MakeGpt2Block(const model::Model& model, int block,
                                     const LayerParameters& parameters);
std::unique_ptr<Layer> MakeGpt2Head(const model::Model& model, const LayerParameters& parameters);
std::unique_ptr<Layer> MakeLlamaBlock(const model::Model& model, int block,
                                      const LayerParameters& parameters);
std::unique_ptr<Layer> MakeLlamaHead(const model::Model& model, const LayerParameters& parameters);

}  // namespace takt::train
