// SPDX-License-Identifier: Apache-2.0
// Lays out what a rank has of a vocabulary that is spread over all pp ranks. Letters: N rows of
// tokens of a microbatch, C hidden, D blocks of words.
#pragma once

#include <cstdint>
#include <vector>

#include "common/base/id.h"
#include "common/layout/stash_layout.h"
#include "common/layout/tensor.h"
#include "common/mesh/vocabulary_split.h"
#include "common/model/model.h"
#include "common/model/recompute.h"
#include "common/model/stash.h"
#include "common/program/lowering.h"

namespace takt::layout {

// The tensors in a kVocabularyStash slot. They are those of model::HeadStash, with the logits of
// the rank's blocks alone.
struct VocabularyStash {
  enum Tensor : std::uint8_t {
    kSoftmaxParts,  // [D,N] of all blocks: S makes those of the rank's blocks, GATHER the others
    kSoftmax,       // [N], the same of whole rows
    kLogits,        // the first of as many tensors as the rank has blocks
  };
};

struct VocabularyLayout {
  mesh::BlockRun blocks;  // the rank's; it may have none
  mesh::WordRun words;
  std::vector<model::StashTensor> tensors;  // of the stash
  StashLayout stash = StashLayout({}, model::Recompute::kNone);

  // T and RETURN add up the gradient of the norm's output in stacks of buffers (model::TreeSum).
  // Each buffer has a tensor [N,C] in f32.
  std::int64_t sum_bytes = 0;  // from one buffer to the next
  // T's stack begins in a kPartialGrad slot with so many, in which it leaves what RETURN passes on.
  int partial_grads = 0;
  int scratch_sums = 0;  // T's others are the first so many in the scratch of layers
  // Those in the scratch of meetings. On the root they follow kHeadGrad in RETURN's stack. On every
  // rank the first one holds the rows that ROWS or ROWS_GRAD passes.
  int meeting_sums = 1;

  std::int64_t stash_bytes() const { return stash.kept_bytes(); }
  std::int64_t partial_grad_bytes() const { return partial_grads * sum_bytes; }
};

// root: the rank has the last stage.  Preconditions: the model has words, and
// mesh::IsSplitOf(ends).
VocabularyLayout LayOutVocabulary(const model::Model& model, const mesh::VocabularyEnds& ends,
                                  PpRank rank, bool root);

// Returns the tensors in a kVocabularyStash slot.
std::vector<Tensor> TensorsInSlot(const VocabularyLayout& vocabulary, const Tensor& slot);

// Returns the sizes from which programs are lowered.  Preconditions: as of LayOutVocabulary.
program::VocabularyShape ShapeOfVocabulary(const model::Model& model,
                                           const mesh::VocabularyEnds& ends);

}  // namespace takt::layout
