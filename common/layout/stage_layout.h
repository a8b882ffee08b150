// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "common/layout/stash_layout.h"
#include "common/mesh/mesh.h"
#include "common/model/model.h"

namespace takt::layout {

// The memory of one stage and microbatch, in bytes. It holds the stashes of the stage's layers and,
// between two layers, the activation that one passes on, which I overwrites with its gradient.
struct StageLayout {
  struct LayerPlace {
    LayerId layer;
    StashLayout stash;
    std::int64_t kept = 0, recomputed = 0;  // offsets of the stash's two parts
    // The layer's output: its offset, its bytes, and the bytes up to what follows. The last layer
    // has none.
    std::int64_t output = 0, output_bytes = 0, output_room = 0;
    std::vector<std::int64_t> scratch;       // offsets of model::Layer::scratch, in scratch
    std::int64_t recomputed_in_scratch = 0;  // offset there, where W follows its I
  };
  std::vector<LayerPlace> layers;
  std::int64_t stash_bytes = 0;       // from F to W
  std::int64_t recomputed_bytes = 0;  // from I to W, where they are apart
  // The most that a pass of any one layer needs while it runs, including what it recomputes where W
  // follows its I. All layers share it.
  std::int64_t scratch_bytes = 0;
  // Where gradients in f32 are rounded once (model::Precisions::RoundsGradientsOnce), scratch
  // begins with two copies in bf16 of what layers pass down. They alternate: one is that of a
  // layer's output, the other of its input. It is the same for all stages.
  std::int64_t rounded_bytes = 0;  // of one; 0: there is none
  // Where layers pass on bf16 (model::Precisions::residual) and some compute in f32, scratch begins
  // instead with two tensors for these: the input of the layer that runs, on which its gradient is
  // written, and its output or the gradient of that.
  std::int64_t widened_bytes = 0;  // of one; 0: there is none
};

// spread: the vocabulary is. Of a head, F then leaves only what the norm's backward needs. The
// norm's output has no room in the stash, because it has a slot of its own, and S and T have the
// rest (vocabulary_layout.h).
StageLayout LayOutStage(const model::Model& model, const mesh::Stage& stage, bool spread = false);

}  // namespace takt::layout
