// SPDX-License-Identifier: Apache-2.0
#include "worker/train/layer.h"

#include "common/base/status.h"

namespace takt::train {

std::unique_ptr<Layer> MakeLayer(const LayerOptions& options) {
  const bool split = options.model.tensor.splits();
  switch (options.layer.kind) {
    case model::LayerKind::kEmbedding:
      return split ? MakeSplitEmbedding(options) : MakeEmbedding(options);
    case model::LayerKind::kGpt2Block:
      return split ? MakeSplitGpt2Block(options) : MakeGpt2Block(options);
    case model::LayerKind::kGpt2Head:
      return split ? MakeSplitGpt2Head(options) : MakeGpt2Head(options);
    case model::LayerKind::kLlamaBlock:
    case model::LayerKind::kQwen3Block:
      return split ? MakeSplitLlamaBlock(options) : MakeLlamaBlock(options);
    case model::LayerKind::kMixtralBlock:
    case model::LayerKind::kQwen3MoeBlock:
      return MakeLlamaBlock(options);  // never split
    case model::LayerKind::kLlamaHead:
      return split ? MakeSplitLlamaHead(options) : MakeLlamaHead(options);
    case model::LayerKind::kEmulated:
      break;
  }
  TAKT_CHECK(false && "a layer without kernels");
  return nullptr;
}

}  // namespace takt::train
