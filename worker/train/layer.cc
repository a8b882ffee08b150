// SPDX-License-Identifier: Apache-2.0
#include "worker/train/layer.h"

#include "common/base/status.h"

namespace takt::train {

std::unique_ptr<Layer> MakeLayer(const model::Model& model, LayerId id,
                                 const LayerParameters& parameters) {
  const model::Layer& layer = model.layers[id.value()];
  switch (layer.kind) {
    case model::LayerKind::kEmbedding:
      return MakeEmbedding(model, parameters);
    case model::LayerKind::kGpt2Block:
      return MakeGpt2Block(model, layer.block, parameters);
    case model::LayerKind::kGpt2Head:
      return MakeGpt2Head(model, parameters);
    case model::LayerKind::kLlamaBlock:
      return MakeLlamaBlock(model, layer.block, parameters);
    case model::LayerKind::kLlamaHead:
      return MakeLlamaHead(model, parameters);
    case model::LayerKind::kEmulated:
      break;
  }
  TAKT_CHECK(false && "a layer without kernels");
  return nullptr;
}

}  // namespace takt::train
