// SPDX-License-Identifier: Apache-2.0
#include "common/layout/vocabulary_layout.h"

#include <algorithm>
#include <cstddef>
#include <iterator>

#include "absl/status/status.h"
#include "common/base/status.h"
#include "common/layout/regions.h"
#include "common/model/tree_sum.h"

namespace takt::layout {
namespace {

using model::HeadStash;
using model::StashTensor;

// A stack of buffers in which a sum over blocks is added. Only the number of buffers is kept.
class CountedSum {
 public:
  void Push(const model::TreeSum::Part& part) {
    most_ = std::max(most_, sum_.size() + 1);
    TAKT_CHECK(sum_.Push(part, [](int /*buffer*/) { return absl::OkStatus(); }).ok());
  }
  const std::vector<model::TreeSum::Part>& parts() const { return sum_.parts(); }
  int left() const { return sum_.size(); }
  int most() const { return most_; }  // in use at once

 private:
  model::TreeSum sum_;
  int most_ = 0;
};

CountedSum SumOf(const mesh::BlockRun& blocks) {
  CountedSum sum;
  for (int block = blocks.first; block < blocks.last; ++block)
    sum.Push({.first = block, .size = 1});
  return sum;
}

// Returns the most buffers in which the root adds what all ranks pass on.
int MostOnRoot(const mesh::VocabularyEnds& ends) {
  CountedSum all;
  for (PpRank rank(0); rank.value() < std::ssize(ends); ++rank) {
    const CountedSum its = SumOf(mesh::BlocksOf(ends, rank));
    for (const model::TreeSum::Part& part : its.parts()) all.Push(part);
  }
  return all.most();
}

// Returns the tensors of VocabularyStash.
std::vector<StashTensor> TensorsOf(const model::Model& model, const mesh::BlockRun& blocks) {
  const std::vector<StashTensor>& head = model.layers.back().stash;
  std::vector<StashTensor> tensors = {head[HeadStash::kSoftmaxParts], head[HeadStash::kSoftmax]};
  const auto logits = head.begin() + HeadStash::kLogits;
  tensors.insert(tensors.end(), logits + blocks.first, logits + blocks.last);
  return tensors;
}

// Returns the bytes of a tensor [N,C] in f32. Every layer but the head passes on as much.
std::int64_t ActivationBytes(const model::Model& model) {
  return model.layers.front().cost.output_bytes;
}

}  // namespace

VocabularyLayout LayOutVocabulary(const model::Model& model, const mesh::VocabularyEnds& ends,
                                  PpRank rank, bool root) {
  VocabularyLayout layout{.blocks = mesh::BlocksOf(ends, rank),
                          .words = mesh::WordsOf(ends, rank, model.config.vocab),
                          .sum_bytes = RoundUp(ActivationBytes(model), kLineBytes)};
  layout.tensors = TensorsOf(model, layout.blocks);
  layout.stash = StashLayout(layout.tensors, model::Recompute::kNone);
  const CountedSum sum = SumOf(layout.blocks);
  layout.partial_grads = sum.left();
  layout.scratch_sums = sum.most() - sum.left();
  if (root) layout.meeting_sums = std::max(1, MostOnRoot(ends) - 1);
  return layout;
}

std::vector<Tensor> TensorsInSlot(const VocabularyLayout& vocabulary, const Tensor& slot) {
  std::vector<Tensor> tensors;
  for (std::size_t i = 0; i < vocabulary.tensors.size(); ++i) {
    Tensor& tensor = tensors.emplace_back(slot);
    tensor.part = vocabulary.tensors[i].name;
    tensor.offset += vocabulary.stash[i].offset;
    tensor.bytes = vocabulary.tensors[i].bytes;
  }
  return tensors;
}

program::VocabularyShape ShapeOfVocabulary(const model::Model& model,
                                           const mesh::VocabularyEnds& ends) {
  const std::int64_t vocab = model.config.vocab;
  const std::int64_t tokens = std::int64_t{model.microbatch} * model.config.context;
  program::VocabularyShape shape{.head_input_bytes = ActivationBytes(model)};
  for (PpRank rank(0); rank.value() < std::ssize(ends); ++rank) {
    const VocabularyLayout layout = LayOutVocabulary(model, ends, rank, /*root=*/false);
    const auto [first, last] = layout.blocks;
    shape.stash_bytes.push_back(layout.stash_bytes());
    shape.partial_grad_bytes.push_back(layout.partial_grad_bytes());
    // As if each word were as frequent as any other.
    shape.rows_bytes.push_back(ActivationBytes(model) * layout.words.words / vocab);
    shape.parts_bytes.push_back(HeadStash::kSoftmaxBytes * tokens * (last - first));
  }
  return shape;
}

}  // namespace takt::layout
