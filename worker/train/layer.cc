// SPDX-License-Identifier: Apache-2.0
#include "worker/train/layer.h"

#include "common/base/status.h"

namespace takt::train {

std::unique_ptr<Layer> MakeLayer(const LayerOptions& options) {
  switch (options.layer.kind) {
    case model::LayerKind::kEmbedding:
      return MakeEmbedding(options);
    case model::LayerKind::kGpt2Block:
      return MakeGpt2Block(options);
    case model::LayerKind::kGpt2Head:
      return MakeGpt2Head(options);
    case model::LayerKind::kLlamaBlock:
    case model::LayerKind::kQwen3Block:
    case model::LayerKind::kMixtralBlock:
    case model::LayerKind::kQwen3MoeBlock:
      return MakeLlamaBlock(options);
    case model::LayerKind::kLlamaHead:
      return MakeLlamaHead(options);
    case model::LayerKind::kEmulated:
      break;
  }
  TAKT_CHECK(false && "a layer without kernels");
  return nullptr;
}

}  // namespace takt::train
