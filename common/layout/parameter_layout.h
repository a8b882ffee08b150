// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <vector>

#include "common/base/id.h"
#include "common/layout/shard.h"
#include "common/layout/tensor.h"
#include "common/mesh/vocabulary_split.h"
#include "common/model/model.h"

namespace takt::layout {

// Lays out the parameters of `layers`, which are in ascending order and lie on one rank.
//
// Each use of a parameter has a gradient. A layer's gradients are one allocation, the bucket that
// data-parallel ranks sum. A weight and its moments exist once: a tied parameter lies with the
// first layer here that uses it. Where products are in bf16, each use of a matrix that its layer
// multiplies by has packed copies.
//
// Where ranks share the optimizer's state, a rank keeps in f32 its shard alone of the weights that
// all its layers read packed, unless they are packed in FP8, whose scales need the whole in f32.
//
// Each layer has these allocations, in this order: gradients, all versions of the weights, those of
// shards of weights, first moments, second moments, last updates; an allocation is left out if
// nothing is of its kind. The packed copies of each use follow all layers, and then the room where
// shards of weights are gathered (Role::kGatheredWeights), which is large enough for any layer's.
// model: borrowed for the section's life. Where its layers are split (model::TensorShare), a rank
// has its rows of tables with a row for each word, and a parameter may have several gradients
// (model::Split). Experts that are away are left out. spread: the vocabulary is, so these tables
// are left out. A layer that has no other parameters then has no allocations. The bucket of a layer
// is followed by those of all leaves but the last (config::Parallelism::data_leaves).
struct ParameterOptions {
  int num_versions = 1;
  bool spread = false;
  ShardPlace place = {};  // the rank has moments of its shard alone
  bool frees = false;     // it also keeps the shard of all weights alone; WholeWeights has the rest
  bool foresees = false;  // behind the versions there is room for foreseen weights
                          // (program::kForeseen)
  int leaves = 1;         // of the rank's replica
};
Section LayOutParameters(const model::Model& model, const std::vector<LayerId>& layers,
                         const ParameterOptions& options = {});

// Says where the weights of stages are whole, on a rank that frees them in between.
struct WholeWeights {
  Section places{.name = "whole weights"};  // an allocation for each stage at a time; no tensors
  // The weights of each stage, but for those that are only read packed, and their packed copies.
  // Offsets are in a place.
  std::map<StageId, std::vector<Tensor>> stages;
};

// Lays out the weights of stages, as LayOutParameters does with those of a rank, in so many places.
// Every place has room for any of the stages. No stage has two uses of one parameter.
// model: borrowed for the result's life.
WholeWeights LayOutWholeWeights(const model::Model& model,
                                const std::map<StageId, std::vector<LayerId>>& stages,
                                int num_places);

// Lays out a rank's rows of the tables that have one for each word, as LayOutParameters does. Both
// uses of a tied table have the rank's rows in common. There is no allocation without words.
// model: borrowed for the section's life. place: as of LayOutParameters. foresees: there is room
// for foreseen rows of the embedding. Forwards that read foreseen weights do not read the head's.
Section LayOutRows(const model::Model& model, const mesh::WordRun& words,
                   const ShardPlace& place = {}, bool foresees = false);

}  // namespace takt::layout
