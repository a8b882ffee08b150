// SPDX-License-Identifier: Apache-2.0
// logits = norm(x) W^T with W [V,C] (the token table if tied), then softmax and cross-entropy. All
// of it goes through the vocabulary block by block (common/model/vocabulary.h). Whatever a block
// computes depends on that block alone, and sums over blocks have a fixed order, so it does not
// matter for the bits where a block is computed.
#include "common/base/status.h"
#include "common/model/tree_sum.h"
#include "common/model/vocabulary.h"
#include "worker/train/layer.h"
#include "worker/train/linear.h"
#include "worker/train/norm.h"

namespace takt::train {
namespace {

using backend::Output;
using backend::SoftmaxPart;
using backend::SoftmaxRow;
using enum model::HeadStash::Tensor;

static_assert(sizeof(SoftmaxPart) == model::HeadStash::kSoftmaxBytes);
static_assert(sizeof(SoftmaxRow) == model::HeadStash::kSoftmaxBytes);

template <class Norm>
class Head final : public Layer {
 public:
  // The layer's parameters are those of the norm, then the weight.
  explicit Head(const LayerOptions& options)
      : rows_(options.model.rows()),
        columns_(options.model.config.hidden),
        streams_bf16_(options.model.precisions.stream() == model::Precision::kBf16),
        layout_(options.place.stash),
        scratch_(options.place.scratch),
        norm_(rows_, options.model.config.norm_epsilon, options.parameters.refs) {
    const ParameterRef& weight = options.parameters.refs[Norm::kNumParameters];
    const model::Precision activations = options.model.precisions.activations;
    for (const auto& [first, words] : model::VocabularyBlocks(options.model.config.vocab)) {
      const std::int64_t stride = model::LogitsStride(words, activations);
      blocks_.push_back({.first = first,
                         .words = words,
                         .stride = stride,
                         .product = Linear(rows_, weight, {first, words}, stride)});
    }
  }

  absl::Status Forward(const ForwardCall& call) const override {
    const StashView s(layout_, call.stash);
    const Output norm = s.Tensor(kNorm);
    if (call.probe) call.probe("act.final_norm.input", {call.input, rows_, columns_});
    RETURN_IF_ERROR(norm_.Forward(*call.backend, call.input, NormOf(s)));
    if (call.probe) call.probe("act.final_norm.output", {norm, rows_, columns_});
    for (std::size_t b = 0; b < blocks_.size(); ++b) {
      const Block& block = blocks_[b];
      const Output logits = s.Tensor(kLogits + b);
      RETURN_IF_ERROR(block.product.Forward(*call.backend, norm, nullptr, logits));
      if (call.probe) call.probe("logits", {logits, rows_, block.words, block.stride});
      RETURN_IF_ERROR(call.backend->Run(backend::SoftmaxBlock{.logits = logits,
                                                              .targets = call.view.targets,
                                                              .parts = PartsOf(s, b),
                                                              .rows = rows_,
                                                              .columns = block.words,
                                                              .stride = block.stride,
                                                              .first = block.first,
                                                              .shares = call.view.terms.shares}));
    }
    return call.backend->Run(
        backend::CrossEntropy{.parts = PartsOf(s, 0),
                              .targets = call.view.targets,
                              .softmax = SoftmaxOf(s),
                              .loss_sum = call.loss_sum,
                              .rows = rows_,
                              .blocks = static_cast<std::int64_t>(blocks_.size()),
                              .scale = call.loss_scale,
                              .z_loss = call.view.terms.z_loss});
  }

  // The stash keeps the logits in every mode.
  absl::Status Recompute(const RecomputeCall& call) const override {
    return norm_.Forward(*call.backend, call.input, NormOf(StashView(layout_, call.stash)));
  }

  absl::Status InputGrad(const InputGradCall& call) const override {
    const StashView s(layout_, call.stash);
    RETURN_IF_ERROR(ProductInputGrad(call, s));
    const Output d_norm = DNorm(call, 0);
    if (call.probe) call.probe("act_grad.final_norm.output", {d_norm, rows_, columns_});
    RETURN_IF_ERROR(norm_.InputGrad(*call.backend,
                                    {.dy = d_norm,
                                     .x = call.input,
                                     .dx = call.d_input,
                                     .rounded = call.d_input_rounded,
                                     .with_w = call.with_w},
                                    NormOf(s)));
    if (call.probe) call.probe("act_grad.final_norm.input", {call.d_input, rows_, columns_});
    return absl::OkStatus();
  }

  absl::Status WeightGrad(const WeightGradCall& call) const override {
    const std::vector<backend::Operand> norm = call.Stashed(layout_, kNorm);
    for (std::size_t b = 0; b < blocks_.size(); ++b) {
      RETURN_IF_ERROR(blocks_[b].product.WeightGrad(
          *call.backend, norm, call.Stashed(layout_, kLogits + b), call.accumulate));
    }
    if (call.follows_i) return absl::OkStatus();
    return norm_.WeightGrad(*call.backend, call.Stashed(layout_, kNormPart), call.accumulate);
  }

  bool StreamsBf16() const override { return streams_bf16_; }

 private:
  struct Block {
    std::int64_t first, words, stride;
    Linear product;  // weight [words,C]
  };

  static NormStash NormOf(const StashView& s) {
    return {s.Tensor(kNorm), s[kNormStats], s[kNormPart]};
  }
  SoftmaxPart* PartsOf(const StashView& s, std::size_t block) const {
    return reinterpret_cast<SoftmaxPart*>(s[kSoftmaxParts]) +
           static_cast<std::int64_t>(block) * rows_;
  }
  static SoftmaxRow* SoftmaxOf(const StashView& s) {
    return reinterpret_cast<SoftmaxRow*>(s[kSoftmax]);
  }

  // Returns buffer i of the gradient of the norm's output.
  Output DNorm(const InputGradCall& call, int i) const {
    return TensorAt(
        call.scratch + scratch_[model::HeadScratch::kDNorm + static_cast<std::size_t>(i)],
        layout_[kNorm].bf16 && blocks_.size() == 1);
  }

  // Leaves the gradient of the norm's output in buffer 0, and the gradients of logits in the stash.
  // Each block is multiplied while its gradients are in the cache.
  absl::Status ProductInputGrad(const InputGradCall& call, const StashView& s) const {
    const auto add = [&](int i) {
      float* const into = DNorm(call, i).f32;
      return call.backend->Run(backend::Add{
          .a = into, .b = DNorm(call, i + 1).f32, .output = into, .count = rows_ * columns_});
    };
    model::TreeSum sum;
    for (std::size_t b = 0; b < blocks_.size(); ++b) {
      const Block& block = blocks_[b];
      const Output logits = s.Tensor(kLogits + b);
      RETURN_IF_ERROR(
          call.backend->Run(backend::CrossEntropyGradient{.logits = logits,
                                                          .targets = call.view.targets,
                                                          .parts = PartsOf(s, b),
                                                          .softmax = SoftmaxOf(s),
                                                          .rows = rows_,
                                                          .columns = block.words,
                                                          .stride = block.stride,
                                                          .first = block.first,
                                                          .shares = call.view.terms.shares}));
      RETURN_IF_ERROR(block.product.InputGrad(*call.backend, logits, DNorm(call, sum.size())));
      RETURN_IF_ERROR(sum.Push({.first = static_cast<int>(b), .size = 1}, add));
    }
    return sum.Finish(add);
  }

  const std::int64_t rows_, columns_;
  const bool streams_bf16_;
  const layout::StashLayout layout_;
  const std::vector<std::int64_t> scratch_;  // offsets in scratch
  const Norm norm_;
  std::vector<Block> blocks_;  // constant after construction
};

// What is left of the head on the rank of the last stage where the vocabulary is spread
// (spread_head.h): its norm. The output goes to all ranks, and its gradient comes back.
template <class Norm>
class HeadNorm final : public Layer {
 public:
  explicit HeadNorm(const LayerOptions& options)
      : rows_(options.model.rows()),
        columns_(options.model.config.hidden),
        one_block_(model::NumVocabularyBlocks(options.model.config.vocab) == 1),
        layout_(options.place.stash),
        norm_(rows_, options.model.config.norm_epsilon, options.parameters.refs) {}

  absl::Status Forward(const ForwardCall& call) const override {
    const Output output =
        TensorAt(reinterpret_cast<std::byte*>(call.output.f32), layout_[kNorm].bf16);
    if (call.probe) call.probe("act.final_norm.input", {call.input, rows_, columns_});
    RETURN_IF_ERROR(norm_.Forward(*call.backend, call.input, NormOf(call.stash, output)));
    if (call.probe) call.probe("act.final_norm.output", {output, rows_, columns_});
    return absl::OkStatus();
  }

  absl::Status Recompute(const RecomputeCall&) const override { return absl::OkStatus(); }

  absl::Status InputGrad(const InputGradCall& call) const override {
    // Sums of several blocks are in f32.
    const backend::Operand d_norm =
        layout_[kNorm].bf16 && one_block_
            ? backend::Operand(reinterpret_cast<const backend::Bf16*>(call.d_output.f32))
            : call.d_output;
    if (call.probe) call.probe("act_grad.final_norm.output", {d_norm, rows_, columns_});
    RETURN_IF_ERROR(norm_.InputGrad(*call.backend,
                                    {.dy = d_norm,
                                     .x = call.input,
                                     .dx = call.d_input,
                                     .rounded = call.d_input_rounded,
                                     .with_w = call.with_w},
                                    NormOf(call.stash, Output())));
    if (call.probe) call.probe("act_grad.final_norm.input", {call.d_input, rows_, columns_});
    return absl::OkStatus();
  }

  absl::Status WeightGrad(const WeightGradCall& call) const override {
    if (call.follows_i) return absl::OkStatus();
    return norm_.WeightGrad(*call.backend, call.Stashed(layout_, kNormPart), call.accumulate);
  }

 private:
  NormStash NormOf(const StashMemory& stash, const Output& output) const {
    const StashView s(layout_, stash);
    return {output, s[kNormStats], s[kNormPart]};
  }

  const std::int64_t rows_, columns_;
  const bool one_block_;
  const layout::StashLayout layout_;
  const Norm norm_;
};

template <class Norm>
std::unique_ptr<Layer> MakeHead(const LayerOptions& options) {
  if (options.parameters.refs.size() == static_cast<std::size_t>(Norm::kNumParameters))
    return std::make_unique<HeadNorm<Norm>>(options);
  return std::make_unique<Head<Norm>>(options);
}

}  // namespace

std::unique_ptr<Layer> MakeGpt2Head(const LayerOptions& options) {
  return MakeHead<LayerNorm>(options);
}

std::unique_ptr<Layer> MakeLlamaHead(const LayerOptions& options) {
  return MakeHead<RmsNorm>(options);
}

}  // namespace takt::train
