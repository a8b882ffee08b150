// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "common/layout/stage_layout.h"
#include "common/layout/tensor.h"
#include "common/layout/vocabulary_layout.h"
#include "common/mesh/mesh.h"
#include "common/model/model.h"
#include "common/program/lowering.h"
#include "common/program/program.h"

namespace takt::layout {

// The layouts of the stages whose weights a rank holds.
using StageLayouts = std::map<StageId, StageLayout>;

// Returns the sizes of a stage's slots, from which programs are lowered. logits: as of LayOutStage.
program::StageShape ShapeOf(const model::Model& model, const mesh::Stage& stage,
                            HeadLogits logits = HeadLogits::kStashed);

// Sets the sizes of the slots for the stash of the head's stage. Where its logits are is known only
// of programs that are there (HeadLogitsOf), so these are lowered as if logits were stashed.
void SizeHeadStash(const model::Model& model, const mesh::Partition& partition,
                   std::vector<program::Program>& programs);

// Lays out the slots of a program, with a tensor for each slot that has bytes, in the order of the
// program. Each slot has an allocation of its own, with one exception. In a program whose W are of
// several microbatches, the slots of one kind and stage that W reads share an allocation
// (Interleave), so that what W multiplies lies together. Weights, gradients and scalars have no
// bytes here. In an emulated model only messages have bytes.
// stages: the rank's stages. A slot of any other stage has no bytes. vocabulary: the rank's part of
// it, if it is spread; else null.
Section LayOutSlots(const model::Model& model, const StageLayouts& stages,
                    const program::Program& program, const VocabularyLayout* vocabulary = nullptr);

// Returns the tensors in a slot of a stage's stash, or in one for what the stage recomputes, each
// in one piece.
std::vector<Tensor> TensorsInSlot(const model::Model& model, const StageLayout& stage,
                                  const Tensor& slot);

}  // namespace takt::layout
