// SPDX-License-Identifier: Apache-2.0
// How much there is to update and to sum. A layer may use a parameter of another one too, as a tied
// head does.
#pragma once

#include <vector>

#include "common/mesh/mesh.h"
#include "common/mesh/vocabulary_split.h"
#include "common/model/model.h"

namespace takt::profile {

// Returns how many parameters each pp rank updates: those of its layers, and its copies of those
// that they share with layers of other ranks. A rank with all uses of a parameter has one copy. A
// parameter whose optimizer has fewer moments than AdamW counts for less, because its update takes
// less time, and one that Muon updates counts for its products too. vocabulary_ends: if the words
// are spread, each rank updates its rows of every table.
std::vector<double> UpdatedParameters(const model::Model& model, const mesh::Partition& partition,
                                      int pp_size,
                                      const mesh::VocabularyEnds& vocabulary_ends = {});

// Returns how many of these are in a pp rank's rows of the embedding, and of the head's own table.
// Precondition: the words are spread.
struct UpdatedRowCounts {
  double embedding = 0, head = 0;  // a tied table is the embedding's
};
UpdatedRowCounts UpdatedRows(const model::Model& model, const mesh::VocabularyEnds& vocabulary_ends,
                             PpRank pp_rank);

// Returns how many values the gradients of a layer have, which data-parallel ranks sum. Each use of
// a parameter has a gradient. spread: without the tables of words, whose rows RowElements counts.
double GradientElements(const model::Model& model, const model::Layer& layer, bool spread = false);

// Returns how many values the gradients of a pp rank's rows have: those of the embedding and those
// of the head. Precondition: the words are spread.
double RowElements(const model::Model& model, const mesh::VocabularyEnds& vocabulary_ends,
                   PpRank pp_rank);

}  // namespace takt::profile
