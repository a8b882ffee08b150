// SPDX-License-Identifier: Apache-2.0
// Computes the blocks of all families where tensor parallelism splits them: attention, then an MLP,
// each between a norm and a residual. Letters: N rows of tokens of a microbatch, n of them on this
// rank, C hidden.
//
// A rank has some leaves of the block: query heads with their keys and values, and a part of the
// MLP's inner width. Each leaf reads the norm's output of all rows, and its last product is a
// partial sum. The sums over the leaves of all ranks go to each rank's rows, where the residual is.
// So F gathers, scatters, gathers and scatters, and I does the same. They keep what they gather, so
// that W has no meetings.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/status.h"
#include "common/model/split_layers.h"
#include "common/model/split_stash.h"
#include "common/model/tree_sum.h"
#include "worker/train/layer.h"
#include "worker/train/linear.h"
#include "worker/train/split_norm.h"
#include "worker/train/stash_view.h"
#include "worker/train/tensor_meetings.h"

namespace takt::train {

// The tensors of one leaf: its part of the stash, and scratch.
class LeafMemory {
 public:
  // starts: of the documents of all rows, as ops have them.
  LeafMemory(const StashView& stash, std::size_t first, std::byte* scratch,
             const std::vector<std::int64_t>& offsets, const std::int32_t* starts)
      : stash_(stash), first_(first), scratch_(scratch), offsets_(offsets), starts_(starts) {}

  // Returns a tensor that is in f32 in all models.
  float* operator[](std::size_t tensor) const { return stash_[first_ + tensor]; }
  backend::Output Tensor(std::size_t tensor) const { return stash_.Tensor(first_ + tensor); }
  // Returns a gradient of activations. like: one of these in the stash, whose type it has.
  backend::Output Scratch(model::SplitBlockScratch::Tensor tensor, std::size_t like) const {
    return TensorAt(scratch_ + offsets_[tensor], Tensor(like).bf16 != nullptr);
  }
  const std::int32_t* starts() const { return starts_; }

 private:
  const StashView& stash_;
  const std::size_t first_;
  std::byte* const scratch_;
  const std::vector<std::int64_t>& offsets_;
  const std::int32_t* const starts_;
};

// The weights of one leaf, and what it computes. All tensors have N rows. `partial` gets the leaf's
// partial sum [N,C].
class SplitLeaf {
 public:
  virtual ~SplitLeaf() = default;
  // x: the norm's output. products: false if they are still in the stash.
  virtual absl::Status AttentionForward(backend::Backend& backend, const backend::Operand& x,
                                        const LeafMemory& m, bool products) const = 0;
  virtual absl::Status AttentionOutput(backend::Backend& backend, const LeafMemory& m,
                                       float* partial) const = 0;
  virtual absl::Status MlpForward(backend::Backend& backend, const backend::Operand& x,
                                  const LeafMemory& m, bool products) const = 0;
  virtual absl::Status MlpOutput(backend::Backend& backend, const LeafMemory& m,
                                 float* partial) const = 0;
  // They leave what W needs in the stash. partial: of the gradient of x.
  virtual absl::Status MlpInputGrad(backend::Backend& backend, const float* d_output,
                                    const LeafMemory& m, float* partial) const = 0;
  virtual absl::Status AttentionInputGrad(backend::Backend& backend, const float* d_output,
                                          const LeafMemory& m, float* partial) const = 0;

  // Has what W reads of each microbatch.
  struct WeightGradInputs {
    std::vector<backend::Operand> norm1, norm2;           // outputs of the norms
    std::vector<backend::Operand> d_attention, d_output;  // of attention's product and the MLP's
    // Returns a tensor of the leaf.
    absl::FunctionRef<std::vector<backend::Operand>(std::size_t)> stashed;
    bool accumulate = false;
  };
  virtual absl::Status WeightGrad(backend::Backend& backend,
                                  const WeightGradInputs& inputs) const = 0;
};

// Leaf is a SplitLeaf with these members besides. Leaf(options, leaf) makes leaf number `leaf` of
// all. Norm is the norm of the block. Norm2Of(options) returns the number of the second norm's
// first parameter, and NumTensors(options) how many tensors a leaf has in the stash.
template <class Leaf>
class SplitBlock final : public Layer {
 public:
  explicit SplitBlock(const LayerOptions& options)
      : columns_(options.model.config.hidden),
        rows_(std::int64_t{options.model.microbatch} * options.model.config.context),
        layout_(options.place.stash),
        scratch_(options.place.scratch),
        meetings_(*options.meetings),
        norm1_(meetings_, options.model.config.norm_epsilon, options.parameters.refs),
        norm2_(meetings_, options.model.config.norm_epsilon,
               std::span(options.parameters.refs).subspan(Leaf::Norm2Of(options))),
        num_tensors_(Leaf::NumTensors(options)) {
    const model::TensorShare& share = meetings_.share();
    for (int i = 0; i < share.leaves_here(); ++i)
      leaves_.emplace_back(options, share.first_leaf() + i);
  }

  absl::Status Forward(const ForwardCall& call) const override {
    const StashView s(layout_, call.stash);
    const Pass pass{*call.backend, s, call.scratch, call.view.starts};
    RETURN_IF_ERROR(ForwardInside(pass, call.input.f32, /*products=*/true));
    return AddUp(pass, s[Stash::kMiddle], call.output.f32, &SplitLeaf::MlpOutput);
  }

  absl::Status Recompute(const RecomputeCall& call) const override {
    const StashView s(layout_, call.stash);
    return ForwardInside({*call.backend, s, call.scratch, call.view.starts}, call.input.f32,
                         /*products=*/layout_.recompute() == model::Recompute::kFull);
  }

  absl::Status InputGrad(const InputGradCall& call) const override {
    const StashView s(layout_, call.stash);
    const Pass pass{*call.backend, s, call.scratch, call.view.starts};
    RETURN_IF_ERROR(Gather(pass, call.d_output.f32, s[Stash::kOutputGrad]));
    ASSIGN_OR_RETURN(const float* const d_norm2,
                     Sum(pass, [&](const SplitLeaf& leaf, const LeafMemory& m, float* partial) {
                       return leaf.MlpInputGrad(pass.backend, s[Stash::kOutputGrad], m, partial);
                     }));
    RETURN_IF_ERROR(norm2_.InputGrad(
        pass.backend,
        {.dy = d_norm2, .x = s[Stash::kMiddle], .residual = call.d_output, .dx = s[Stash::kMiddle]},
        Norm2(s)));
    RETURN_IF_ERROR(Gather(pass, s[Stash::kMiddle], s[Stash::kMiddleGrad]));
    ASSIGN_OR_RETURN(const float* const d_norm1,
                     Sum(pass, [&](const SplitLeaf& leaf, const LeafMemory& m, float* partial) {
                       return leaf.AttentionInputGrad(pass.backend, s[Stash::kMiddleGrad], m,
                                                      partial);
                     }));
    return norm1_.InputGrad(
        pass.backend,
        {.dy = d_norm1, .x = call.input, .residual = s[Stash::kMiddle], .dx = call.d_input},
        Norm1(s));
  }

  absl::Status WeightGrad(const WeightGradCall& call) const override {
    for (std::size_t i = 0; i < leaves_.size(); ++i) {
      const auto stashed = [&](std::size_t tensor) {
        return call.Stashed(layout_, FirstOf(i) + tensor);
      };
      RETURN_IF_ERROR(leaves_[i].WeightGrad(
          *call.backend, {.norm1 = call.Stashed(layout_, Stash::kNorm1),
                          .norm2 = call.Stashed(layout_, Stash::kNorm2),
                          .d_attention = call.Stashed(layout_, Stash::kMiddleGrad),
                          .d_output = call.Stashed(layout_, Stash::kOutputGrad),
                          .stashed = stashed,
                          .accumulate = call.accumulate}));
    }
    RETURN_IF_ERROR(norm2_.WeightGrad(*call.backend, call.Stashed(layout_, Stash::kNorm2Part),
                                      call.accumulate));
    return norm1_.WeightGrad(*call.backend, call.Stashed(layout_, Stash::kNorm1Part),
                             call.accumulate);
  }

 private:
  using Stash = model::SplitBlockStash;

  struct Pass {
    backend::Backend& backend;
    const StashView& stash;
    std::byte* scratch;
    const std::int32_t* starts;  // of documents
  };

  std::size_t FirstOf(std::size_t leaf) const { return Stash::kLeaves + leaf * num_tensors_; }
  LeafMemory MemoryOf(const Pass& pass, std::size_t leaf) const {
    return {pass.stash, FirstOf(leaf), pass.scratch, scratch_, pass.starts};
  }
  static NormStash Norm1(const StashView& s) {
    return {s.Tensor(Stash::kNorm1), s[Stash::kNorm1Stats], s[Stash::kNorm1Part]};
  }
  static NormStash Norm2(const StashView& s) {
    return {s.Tensor(Stash::kNorm2), s[Stash::kNorm2Stats], s[Stash::kNorm2Part]};
  }

  // Computes everything except the block's output. What has passed between ranks is in the stash
  // if the products are.
  absl::Status ForwardInside(const Pass& pass, const float* input, bool products) const {
    const StashView& s = pass.stash;
    if (products) {
      RETURN_IF_ERROR(norm1_.Forward(pass.backend, input, Norm1(s)));
      RETURN_IF_ERROR(meetings_.GatherRows(s.Tensor(Stash::kNorm1)));
    }
    for (std::size_t i = 0; i < leaves_.size(); ++i) {
      RETURN_IF_ERROR(leaves_[i].AttentionForward(pass.backend, s.Tensor(Stash::kNorm1),
                                                  MemoryOf(pass, i), products));
    }
    if (products) {
      RETURN_IF_ERROR(AddUp(pass, input, s[Stash::kMiddle], &SplitLeaf::AttentionOutput));
      RETURN_IF_ERROR(norm2_.Forward(pass.backend, s[Stash::kMiddle], Norm2(s)));
      RETURN_IF_ERROR(meetings_.GatherRows(s.Tensor(Stash::kNorm2)));
    }
    for (std::size_t i = 0; i < leaves_.size(); ++i) {
      RETURN_IF_ERROR(leaves_[i].MlpForward(pass.backend, s.Tensor(Stash::kNorm2),
                                            MemoryOf(pass, i), products));
    }
    return absl::OkStatus();
  }

  // Adds up a product of the leaves, and adds the residual to this rank's rows.
  absl::Status AddUp(const Pass& pass, const float* residual, float* output,
                     absl::Status (SplitLeaf::*product)(backend::Backend&, const LeafMemory&,
                                                        float*) const) const {
    ASSIGN_OR_RETURN(const float* const sum,
                     Sum(pass, [&](const SplitLeaf& leaf, const LeafMemory& m, float* partial) {
                       return (leaf.*product)(pass.backend, m, partial);
                     }));
    return pass.backend.Run(backend::Add{
        .a = sum, .b = residual, .output = output, .count = meetings_.rows_here() * columns_});
  }

  // Adds up what the leaves of all ranks compute. Returns the sum of this rank's rows, in scratch.
  // compute: absl::Status(const SplitLeaf&, const LeafMemory&, float* partial).
  template <class Compute>
  absl::StatusOr<const float*> Sum(const Pass& pass, const Compute& compute) const {
    const auto buffer = [&](int i) {
      return reinterpret_cast<float*>(
          pass.scratch + scratch_[model::SplitBlockScratch::kSums + static_cast<std::size_t>(i)]);
    };
    const auto add = [&](int i) {
      return pass.backend.Run(backend::Add{
          .a = buffer(i), .b = buffer(i + 1), .output = buffer(i), .count = rows_ * columns_});
    };
    model::TreeSum sum;
    const int first = meetings_.share().first_leaf();
    for (std::size_t i = 0; i < leaves_.size(); ++i) {
      RETURN_IF_ERROR(compute(leaves_[i], MemoryOf(pass, i), buffer(sum.size())));
      RETURN_IF_ERROR(sum.Push({.first = first + static_cast<int>(i), .size = 1}, add));
    }
    RETURN_IF_ERROR(sum.Finish(add));
    RETURN_IF_ERROR(meetings_.ScatterRows(buffer(0)));
    return buffer(0) + meetings_.first_row() * columns_;
  }

  // Copies the rows of all ranks to `all` [N,C]. mine: this rank's.
  absl::Status Gather(const Pass& pass, const float* mine, float* all) const {
    RETURN_IF_ERROR(pass.backend.Run(backend::Copy{.input = mine,
                                                   .output = all + meetings_.first_row() * columns_,
                                                   .count = meetings_.rows_here() * columns_}));
    return meetings_.GatherRows(all);
  }

  const std::int64_t columns_, rows_;
  const layout::StashLayout layout_;
  const std::vector<std::int64_t> scratch_;  // offsets in scratch
  TensorMeetings& meetings_;
  const SplitNorm<typename Leaf::Norm> norm1_, norm2_;
  const std::size_t num_tensors_;  // of a leaf
  std::vector<Leaf> leaves_;       // constant after construction
};

// Makes the products of a leaf.
class LeafProducts {
 public:
  LeafProducts(const LayerOptions& options, Linear::Storage storage, int leaf)
      : rows_(std::int64_t{options.model.microbatch} * options.model.config.context),
        storage_(storage),
        share_(options.model.tensor),
        leaf_(leaf) {}

  // bias: null: none.
  Linear Make(const ParameterRef& weight, const ParameterRef* bias) const {
    const auto [piece, gradient] = model::PieceOf(*weight.parameter, share_, leaf_);
    return {rows_, storage_, weight, bias, Linear::Piece{.number = piece, .gradient = gradient}};
  }
  // Makes a product whose results are summed over leaves. The first leaf of all adds the bias, and
  // the first leaf of each rank computes the gradient, which needs all rows and is the same
  // everywhere.
  Linear MakeSummed(const ParameterRef& weight, const ParameterRef* bias) const {
    const auto [piece, gradient] = model::PieceOf(*weight.parameter, share_, leaf_);
    return {rows_, storage_, weight, leaf_ == share_.first_leaf() ? bias : nullptr,
            Linear::Piece{.number = piece, .gradient = gradient, .adds_bias = leaf_ == 0}};
  }

 private:
  const std::int64_t rows_;
  const Linear::Storage storage_;
  const model::TensorShare share_;
  const int leaf_;
};

}  // namespace takt::train
