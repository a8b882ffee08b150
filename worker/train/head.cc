// SPDX-License-Identifier: Apache-2.0
// logits = norm(x) W^T with W [V,C] (the token table if tied), then softmax and cross-entropy. All
// of it goes through the vocabulary block by block (common/model/vocabulary.h). Whatever a block
// computes depends on that block alone, and sums over blocks have a fixed order, so it does not
// matter for the bits where a block is computed.
#include "common/base/status.h"
#include "common/model/head_slices.h"
#include "common/model/tree_sum.h"
#include "common/model/vocabulary.h"
#include "worker/train/head_product.h"
#include "worker/train/layer.h"
#include "worker/train/norm.h"

namespace takt::train {
namespace {

using backend::Output;
using backend::SoftmaxPart;
using backend::SoftmaxRow;
using model::RowSlice;
using enum model::HeadStash::Tensor;

static_assert(sizeof(SoftmaxPart) == model::HeadStash::kSoftmaxBytes);
static_assert(sizeof(SoftmaxRow) == model::HeadStash::kSoftmaxBytes);

// The logits of a head are *stashed* by F, or *sliced* (layout::HeadLogits): then I computes
// everything behind the norm slice by slice, W included, and F leaves that out. The ops of a slice
// are the same in both, so are their bits.
template <class Norm>
class Head final : public Layer {
 public:
  // The layer's parameters are those of the norm, then the weight.
  explicit Head(const LayerOptions& options)
      : rows_(options.model.rows()),
        columns_(options.model.config.hidden),
        streams_bf16_(options.model.precisions.stream() == model::Precision::kBf16),
        activations_(options.model.precisions.activations),
        sliced_(options.place.sliced),
        slices_(model::RowSlices(rows_, sliced_ ? options.model.head_slice_rows() : rows_)),
        layout_(options.place.stash),
        scratch_(options.place.scratch),
        norm_(rows_, options.model.config.norm_epsilon, options.parameters.refs) {
    const ParameterRef& weight = options.parameters.refs[Norm::kNumParameters];
    for (const auto& [first, words] : model::VocabularyBlocks(options.model.config.vocab)) {
      const std::int64_t stride = model::LogitsStride(words, activations_);
      blocks_.push_back({.first = first,
                         .words = words,
                         .stride = stride,
                         .product = HeadProduct(options.model, weight, {first, words}, stride)});
    }
  }

  absl::Status Forward(const ForwardCall& call) const override {
    const StashView s(layout_, call.stash);
    const Output norm = s.Tensor(kNorm);
    if (call.probe) call.probe("act.final_norm.input", {call.input, rows_, columns_});
    RETURN_IF_ERROR(norm_.Forward(*call.backend, call.input, NormOf(s)));
    if (call.probe) call.probe("act.final_norm.output", {norm, rows_, columns_});
    if (sliced_ && call.loss_sum == nullptr) return absl::OkStatus();
    const Memory memory = MemoryOf(s, call.scratch);
    for (const RowSlice& slice : slices_) RETURN_IF_ERROR(Logits(call, memory, slice));
    return Softmax(call, memory, {.first = 0, .rows = rows_}, call.loss_sum);
  }

  // It keeps logits in every mode, if they are stashed.
  absl::Status Recompute(const RecomputeCall& call) const override {
    return norm_.Forward(*call.backend, call.input, NormOf(StashView(layout_, call.stash)));
  }

  absl::Status InputGrad(const InputGradCall& call) const override {
    const StashView s(layout_, call.stash);
    const Memory memory = MemoryOf(s, call.scratch);
    for (const RowSlice& slice : slices_) {
      if (sliced_) {
        RETURN_IF_ERROR(Logits(call, memory, slice));
        RETURN_IF_ERROR(Softmax(call, memory, slice, /*loss_sum=*/nullptr));
      }
      RETURN_IF_ERROR(Gradients(call, memory, slice));
    }
    // One op sums the losses of all rows, as where F does it.
    if (sliced_) RETURN_IF_ERROR(Softmax(call, memory, {.first = 0, .rows = rows_}, call.loss_sum));
    const Output& d_norm = memory.d_norm.front();
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
    if (sliced_) return absl::OkStatus();  // I has computed all of it
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
    HeadProduct product;  // weight [words,C]
  };

  // Where the tensors of HeadStash and HeadScratch are.
  struct Memory {
    Output norm;
    SoftmaxPart* parts = nullptr;
    SoftmaxRow* softmax = nullptr;
    std::vector<Output> logits;  // by block; of a slice, if they are sliced
    std::vector<Output> d_norm;  // the buffers of the sum over blocks
  };

  static NormStash NormOf(const StashView& s) {
    return {s.Tensor(kNorm), s[kNormStats], s[kNormPart]};
  }

  Memory MemoryOf(const StashView& s, std::byte* scratch) const {
    const auto num_blocks = static_cast<int>(blocks_.size());
    const bool bf16 = activations_ == model::Precision::kBf16;
    std::size_t next = model::HeadScratch::kDNorm;
    Memory memory{.norm = s.Tensor(kNorm)};
    for (int i = 0; i < model::TreeSum::MostBuffers(num_blocks); ++i)
      memory.d_norm.push_back(TensorAt(scratch + scratch_[next++], bf16 && num_blocks == 1));
    if (sliced_) {
      memory.parts = reinterpret_cast<SoftmaxPart*>(scratch + scratch_[next++]);
      memory.softmax = reinterpret_cast<SoftmaxRow*>(scratch + scratch_[next++]);
    } else {
      memory.parts = reinterpret_cast<SoftmaxPart*>(s[kSoftmaxParts]);
      memory.softmax = reinterpret_cast<SoftmaxRow*>(s[kSoftmax]);
    }
    for (std::size_t b = 0; b < blocks_.size(); ++b) {
      memory.logits.push_back(sliced_ ? TensorAt(scratch + scratch_[next++], bf16)
                                      : s.Tensor(kLogits + b));
    }
    return memory;
  }

  // Computes the logits of a slice, and what each block of them adds to the softmax of a row.
  // Call: ForwardCall or InputGradCall.
  template <class Call>
  absl::Status Logits(const Call& call, const Memory& memory, const RowSlice& slice) const {
    for (std::size_t b = 0; b < blocks_.size(); ++b) {
      const Block& block = blocks_[b];
      const Output& logits = memory.logits[b];
      RETURN_IF_ERROR(block.product.Forward(*call.backend, slice.rows,
                                            From(memory.norm, slice.first * columns_), logits));
      if (call.probe) call.probe("logits", {logits, slice.rows, block.words, block.stride});
      RETURN_IF_ERROR(
          call.backend->Run(backend::SoftmaxBlock{.logits = logits,
                                                  .targets = call.view.targets + slice.first,
                                                  .parts = PartsOf(memory, b, slice),
                                                  .rows = slice.rows,
                                                  .columns = block.words,
                                                  .stride = block.stride,
                                                  .first = block.first,
                                                  .shares = call.view.terms.shares}));
    }
    return absl::OkStatus();
  }

  // Computes the softmax of whole rows, and the sum of their losses, if anyone asks.
  template <class Call>
  absl::Status Softmax(const Call& call, const Memory& memory, const RowSlice& slice,
                       double* loss_sum) const {
    return call.backend->Run(
        backend::CrossEntropy{.parts = PartsOf(memory, 0, slice),
                              .targets = call.view.targets + slice.first,
                              .softmax = memory.softmax + slice.first,
                              .loss_sum = loss_sum,
                              .rows = slice.rows,
                              .blocks = static_cast<std::int64_t>(blocks_.size()),
                              .scale = call.loss_scale,
                              .z_loss = call.view.terms.z_loss,
                              .parts_stride = rows_});
  }

  // Leaves the gradient of the norm's output in buffer 0 of its sum, and those of logits in their
  // place. Each block is multiplied while its gradients are in the cache. If the logits are sliced,
  // it adds to the gradient of the matrix as well.
  absl::Status Gradients(const InputGradCall& call, const Memory& memory,
                         const RowSlice& slice) const {
    // Only the first buffer has a place for every row.
    const auto buffer = [&](int i) {
      const Output& all = memory.d_norm[static_cast<std::size_t>(i)];
      return i == 0 ? From(all, slice.first * columns_) : all;
    };
    const auto add = [&](int i) {
      float* const into = buffer(i).f32;
      return call.backend->Run(backend::Add{
          .a = into, .b = buffer(i + 1).f32, .output = into, .count = slice.rows * columns_});
    };
    model::TreeSum sum;
    for (std::size_t b = 0; b < blocks_.size(); ++b) {
      const Block& block = blocks_[b];
      const Output& logits = memory.logits[b];
      RETURN_IF_ERROR(call.backend->Run(
          backend::CrossEntropyGradient{.logits = logits,
                                        .targets = call.view.targets + slice.first,
                                        .parts = PartsOf(memory, b, slice),
                                        .softmax = memory.softmax + slice.first,
                                        .rows = slice.rows,
                                        .columns = block.words,
                                        .stride = block.stride,
                                        .first = block.first,
                                        .shares = call.view.terms.shares}));
      RETURN_IF_ERROR(
          block.product.InputGrad(*call.backend, slice.rows, logits, buffer(sum.size())));
      if (sliced_) {
        TAKT_CHECK(call.with_w.has_value());
        RETURN_IF_ERROR(block.product.WeightGrad(*call.backend, slice.rows,
                                                 From(memory.norm, slice.first * columns_), logits,
                                                 *call.with_w || slice.first > 0));
      }
      RETURN_IF_ERROR(sum.Push({.first = static_cast<int>(b), .size = 1}, add));
    }
    return sum.Finish(add);
  }

  SoftmaxPart* PartsOf(const Memory& memory, std::size_t block, const RowSlice& slice) const {
    return memory.parts + static_cast<std::int64_t>(block) * rows_ + slice.first;
  }

  const std::int64_t rows_, columns_;
  const bool streams_bf16_;
  const model::Precision activations_;
  const bool sliced_;
  const std::vector<RowSlice> slices_;  // all rows at once, if the logits are stashed
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
