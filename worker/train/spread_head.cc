// SPDX-License-Identifier: Apache-2.0
#include "worker/train/spread_head.h"

#include "common/base/status.h"
#include "common/model/vocabulary.h"

namespace takt::train {

SpreadHead::SpreadHead(const model::Model& model, const mesh::BlockRun& blocks,
                       const ParameterRef* matrix)
    : rows_(std::int64_t{model.microbatch} * model.config.context),
      columns_(model.config.hidden),
      num_blocks_(model::NumVocabularyBlocks(model.config.vocab)),
      partial_sums_(PartialSumsOf(blocks)) {
  const std::vector<model::VocabularyBlock> all = model::VocabularyBlocks(model.config.vocab);
  for (int b = blocks.first; b < blocks.last; ++b) {
    const auto [first, words] = all[static_cast<std::size_t>(b)];
    const std::int64_t stride = model::LogitsStride(words, model.precisions.activations);
    blocks_.push_back(
        {.number = b,
         .first = first,
         .words = words,
         .stride = stride,
         .product = HeadProduct(model, *matrix, {first - matrix->first_row, words}, stride)});
  }
}

absl::Status SpreadHead::Forward(backend::Backend& backend, const SpreadHeadMemory& memory) const {
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    const Block& block = blocks_[i];
    RETURN_IF_ERROR(block.product.Forward(backend, rows_, memory.norm, memory.logits[i]));
    RETURN_IF_ERROR(backend.Run(backend::SoftmaxBlock{.logits = memory.logits[i],
                                                      .targets = memory.view.targets,
                                                      .parts = memory.parts + block.number * rows_,
                                                      .rows = rows_,
                                                      .columns = block.words,
                                                      .stride = block.stride,
                                                      .first = block.first,
                                                      .shares = memory.view.terms.shares}));
  }
  return absl::OkStatus();
}

absl::Status SpreadHead::Loss(backend::Backend& backend, const SpreadHeadMemory& memory,
                              const LossCall& loss) const {
  return backend.Run(backend::CrossEntropy{.parts = memory.parts,
                                           .targets = memory.view.targets,
                                           .softmax = memory.softmax,
                                           .loss_sum = loss.sum,
                                           .rows = rows_,
                                           .blocks = num_blocks_,
                                           .scale = loss.scale,
                                           .z_loss = memory.view.terms.z_loss});
}

template <class Then>
absl::Status SpreadHead::ForEachInputGrad(backend::Backend& backend, const SpreadHeadMemory& memory,
                                          const Then& then) const {
  const auto buffer = [&](int i) { return memory.sums[static_cast<std::size_t>(i)]; };
  const auto add = [&](int i) {
    float* const into = buffer(i).f32;
    return backend.Run(
        backend::Add{.a = into, .b = buffer(i + 1).f32, .output = into, .count = rows_ * columns_});
  };
  model::TreeSum sum;
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    const Block& block = blocks_[i];
    const backend::Output logits = memory.logits[i];
    RETURN_IF_ERROR(
        backend.Run(backend::CrossEntropyGradient{.logits = logits,
                                                  .targets = memory.view.targets,
                                                  .parts = memory.parts + block.number * rows_,
                                                  .softmax = memory.softmax,
                                                  .rows = rows_,
                                                  .columns = block.words,
                                                  .stride = block.stride,
                                                  .first = block.first,
                                                  .shares = memory.view.terms.shares}));
    RETURN_IF_ERROR(block.product.InputGrad(backend, rows_, logits, buffer(sum.size())));
    RETURN_IF_ERROR(sum.Push({.first = block.number, .size = 1}, add));
    RETURN_IF_ERROR(then(i));
  }
  return absl::OkStatus();
}

absl::Status SpreadHead::Backward(backend::Backend& backend, const SpreadHeadMemory& memory,
                                  bool accumulate) const {
  const backend::Operand norm = memory.norm;
  return ForEachInputGrad(backend, memory, [&](std::size_t i) {
    const backend::Operand d_logits = memory.logits[i];
    return WeightGrad(backend, i, {&norm, 1}, {&d_logits, 1}, accumulate);
  });
}

absl::Status SpreadHead::InputGrad(backend::Backend& backend,
                                   const SpreadHeadMemory& memory) const {
  return ForEachInputGrad(backend, memory, [](std::size_t) { return absl::OkStatus(); });
}

}  // namespace takt::train
