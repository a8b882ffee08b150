// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "common/layout/stash_layout.h"
#include "common/mesh/mesh.h"
#include "common/model/model.h"
#include "common/program/program.h"

namespace takt::layout {

// Says where the logits of the head are, and who computes them.
enum class HeadLogits : std::uint8_t {
  kStashed,  // F, in the stash; I writes their gradient over them, for W
  // B, slice by slice (model/head_slices.h), in scratch. F leaves the norm's output alone. In a
  // program that only goes forward, F computes them slice by slice and leaves none.
  kSliced,
  kSpread,  // S and T, in slots of their own (vocabulary_layout.h)
};

// Returns it for a rank that runs the program. program::SlicesHead decides whether logits are
// sliced.
HeadLogits HeadLogitsOf(const model::Model& model, const program::Program& program);

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
    bool sliced = false;                     // a head with HeadLogits::kSliced
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

  // Returns whether its last layer is a head with HeadLogits::kSliced.
  bool slices_head() const { return !layers.empty() && layers.back().sliced; }
};

// logits: of the head, if the stage has it. Where they are not stashed, F leaves only what the
// norm's backward needs. Where they are spread, the norm's output has no room in the stash, either,
// because it has a slot of its own.
StageLayout LayOutStage(const model::Model& model, const mesh::Stage& stage,
                        HeadLogits logits = HeadLogits::kStashed);

}  // namespace takt::layout
