// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "common/base/id.h"
#include "common/model/model.h"
#include "common/model/stash.h"

namespace takt::model {

// The memory of one stage and microbatch: the stashes of its layers, and between two layers the
// activation that one passes on, which I overwrites with its gradient. Bytes.
struct StageLayout {
  struct LayerPlace {
    StashLayout stash;
    std::int64_t kept = 0, recomputed = 0;  // offsets of the stash's two parts
    // Offset of its output, and bytes from there to what follows; none of the last layer.
    std::int64_t output = 0, output_room = 0;
  };
  std::vector<LayerPlace> layers;
  std::int64_t stash_bytes = 0;       // from F to W
  std::int64_t recomputed_bytes = 0;  // from I to W, where they are apart
  // Of any pass of any one layer, shared by all: what it only needs while it runs, and what it
  // recomputes where I and W follow each other.
  std::int64_t scratch_bytes = 0;
};

// Layers [first, last) of the model's list.
StageLayout LayOutStage(const Model& model, LayerId first, LayerId last, Recompute recompute);

}  // namespace takt::model
