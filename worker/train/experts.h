// SPDX-License-Identifier: Apache-2.0
// A mixture of experts, in the place of a block's MLP:
//   y = x + sum over the experts e that a token chose of down_e(w_e silu(gate_e(n)) * up_e(n))
// where n is the norm of x and w_e the router's weight. No token is dropped. expert_ops.h says in
// which order rows are, and so why results depend on nothing but the tokens of the microbatch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/layout/stash_layout.h"
#include "common/model/mixture.h"
#include "worker/backend/backend.h"
#include "worker/train/layer.h"
#include "worker/train/parameter_store.h"
#include "worker/train/shared_mixture.h"
#include "worker/train/stash_view.h"

namespace takt::train {

// The part of a block with experts after its second norm. It has no state except what it points to.
class Experts {
 public:
  // router: the first of the mixture's parameters, which are in the order of
  // model::AddMixtureParameters. All is borrowed.
  Experts(const LayerOptions& options, const ParameterRef* router);

  // Computes what the last product reads, from the norm in the stash. products: false if the
  // results of the router and of products are still there.
  absl::Status Forward(const RecomputeCall& call, const StashView& s, bool products) const;
  // Computes output [N,C] = addend + the sum of each token's experts.
  absl::Status Output(const ForwardCall& call, const StashView& s, const float* addend) const;
  // Computes the gradient of the norm's output, [N,C].
  absl::Status InputGrad(const InputGradCall& call, const StashView& s, float* d_norm) const;
  absl::Status WeightGrad(const WeightGradCall& call) const;

 private:
  enum class Matrix : std::uint8_t { kGate, kUp, kDown };  // in the order of the parameters

  const ParameterRef& Of(std::int64_t expert, Matrix matrix) const {
    return router_[1 + 3 * expert + static_cast<std::int64_t>(matrix)];
  }
  // Returns the router's bias, or null if it has none.
  const ParameterRef* Bias() const {
    const bool sigmoid = mixture_.scores == model::RouterScores::kSigmoid;
    const int here = shared_.has_value() ? shared_->experts_here() : mixture_.experts;
    return sigmoid ? &router_[1 + std::int64_t{3} * here] : nullptr;
  }
  // Returns a tensor of the mixture.
  float* Floats(const StashView& s, model::MixtureStash::Tensor tensor) const;
  std::int32_t* Integers(const StashView& s, model::MixtureStash::Tensor tensor) const;
  backend::ExpertRows RowsOf(const StashView& s) const;

  // Multiplies the rows of each expert, in ascending order, by its matrix.
  // a, c: one of them has a row for each token, as ExpertMatmul says.
  struct Factors {
    backend::Operand a;
    float* c = nullptr;
    bool to_tokens = false;
    bool backward = false;  // by the transpose: of gradients
  };
  absl::Status Multiply(backend::Backend& backend, const backend::ExpertRows& rows, Matrix matrix,
                        const Factors& factors) const;
  // Adds the gradients of one microbatch to those of the experts' matrices, or overwrites them.
  struct GradientFactors {
    backend::Operand d_output, input;
    bool accumulate = false;
  };
  absl::Status MatrixGrads(backend::Backend& backend, const backend::ExpertRows& rows,
                           Matrix matrix, const GradientFactors& factors) const;

  // Chooses the experts of each token, and makes their rows.
  absl::Status Route(backend::Backend& backend, const StashView& s) const;
  SharedExperts::Routed RoutedOf(const StashView& s) const;
  // Computes the gradients through the experts: by the router's weights, and in rows of kGate and
  // kUp.
  absl::Status ProductGrads(const InputGradCall& call, const StashView& s, float* d_weights) const;
  // Computes the router's gradients, over the logits, and its part of `d_norm`, over that.
  absl::Status RouterInputGrad(backend::Backend& backend, const StashView& s,
                               const float* d_weights, float* d_norm) const;
  // Adds the gradients of the matrices of all experts.
  absl::Status ExpertGrads(backend::Backend& backend, const WeightGradInput& input,
                           bool accumulate) const;

  const model::Mixture& mixture_;
  const std::optional<SharedMixture> shared_;  // nullopt: all experts are here
  const ParameterRef* const router_;
  const layout::StashLayout layout_;
  const std::vector<std::int64_t> scratch_;  // offsets in scratch
  const std::size_t first_;                  // of the mixture's tensors in the stash
  const std::int64_t context_, rows_, hidden_;
  const int block_;
  const double auxiliary_scale_;
};

}  // namespace takt::train
