// SPDX-License-Identifier: Apache-2.0
#include "common/model/stage_layout.h"

#include <algorithm>
#include <utility>

#include "common/base/regions.h"

namespace takt::model {
namespace {

// A head keeps its logits under kFull too: the last stage has few microbatches between F and I, in
// most schedules one, so that room to compute them again would be no less than what keeps them.
Recompute ModeOf(const Layer& layer, Recompute recompute) {
  const bool head = layer.kind == LayerKind::kGpt2Head || layer.kind == LayerKind::kLlamaHead;
  return head && recompute == Recompute::kFull ? Recompute::kSelective : recompute;
}

}  // namespace

StageLayout LayOutStage(const Model& model, LayerId first, LayerId last, Recompute recompute) {
  StageLayout stage;
  Regions kept, recomputed;
  for (LayerId id = first; id < last; ++id) {
    const Layer& layer = model.layers[id.value()];
    StageLayout::LayerPlace place{.stash = StashLayout(layer.stash, ModeOf(layer, recompute))};
    place.kept = kept.Add(place.stash.kept_bytes());
    place.recomputed = recomputed.Add(place.stash.recomputed_bytes());
    if (id.value() + 1 < last.value()) {
      place.output = kept.Add(layer.cost.output_bytes);
      place.output_room = kept.size() - place.output;
    }
    stage.scratch_bytes =
        std::max(stage.scratch_bytes, layer.scratch.bytes() + place.stash.recomputed_bytes());
    stage.layers.push_back(std::move(place));
  }
  stage.stash_bytes = kept.size();
  stage.recomputed_bytes = recomputed.size();
  return stage;
}

}  // namespace takt::model
