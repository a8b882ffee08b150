// SPDX-License-Identifier: Apache-2.0
#include "common/layout/stage_layout.h"

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "common/layout/regions.h"
#include "common/program/sliced_head.h"

namespace takt::layout {
namespace {

using model::HeadScratch;
using model::HeadStash;
using model::Recompute;
using model::ScratchTensor;
using model::StashTensor;

bool IsHead(const model::Layer& layer) {
  using enum model::LayerKind;
  return layer.kind == kGpt2Head || layer.kind == kLlamaHead;
}

StashLayout LayOutStash(const model::Layer& layer, Recompute recompute, HeadLogits logits) {
  if (!IsHead(layer)) return StashLayout(layer.stash, recompute);
  const std::span<const StashTensor> stash = layer.stash;
  const auto of_norm = stash.first(HeadStash::kSoftmaxParts);
  if (logits == HeadLogits::kSpread) {
    std::vector<StashTensor> tensors(of_norm.begin(), of_norm.end());
    tensors[HeadStash::kNorm].bytes = 0;
    // A few numbers a row are left, so nothing is computed again.
    return StashLayout(tensors, Recompute::kNone);
  }
  // A head keeps its logits under kFull too. I and W both need them and may run at different times,
  // so each of them would have to compute the logits again.
  return StashLayout(logits == HeadLogits::kSliced ? of_norm : stash,
                     recompute == Recompute::kFull ? Recompute::kSelective : recompute);
}

// Returns the scratch of a head as HeadScratch lists it.
std::vector<ScratchTensor> HeadScratchOf(const model::Model& model, const model::Layer& layer,
                                         HeadLogits logits) {
  // T adds up the gradient of the norm's output in a spread head's place.
  if (logits == HeadLogits::kSpread) return {};
  std::vector<ScratchTensor> scratch = layer.scratch;
  if (logits == HeadLogits::kStashed) return scratch;
  const auto of_slice = [&](std::int64_t bytes) {
    return bytes / model.rows() * model.head_slice_rows();
  };
  for (std::size_t i = HeadScratch::kDNorm + 1; i < scratch.size(); ++i)
    scratch[i].bytes = of_slice(scratch[i].bytes);
  for (std::size_t i = HeadStash::kSoftmaxParts; i < layer.stash.size(); ++i) {
    const StashTensor& tensor = layer.stash[i];
    const bool is_logits = i >= HeadStash::kLogits;
    scratch.push_back({tensor.name, is_logits ? of_slice(tensor.bytes) : tensor.bytes});
  }
  return scratch;
}

// Fills the places of the layer's scratch, from `begin` on, and returns where it ends.
std::int64_t LayOutScratch(std::span<const ScratchTensor> tensors, std::int64_t begin,
                           StageLayout::LayerPlace& place) {
  std::int64_t line = begin, next = begin, end = begin;
  for (const ScratchTensor& tensor : tensors) {
    if (tensor.start == ScratchTensor::Start::kNextLine) line = RoundUp(end, kLineBytes);
    const bool behind = tensor.start == ScratchTensor::Start::kBehindTensor;
    place.scratch.push_back(behind ? next : line);
    next = place.scratch.back() + tensor.bytes;
    end = std::max(end, next);
  }
  place.recomputed_in_scratch = RoundUp(end, kLineBytes);
  return place.recomputed_in_scratch + place.stash.recomputed_bytes();
}

// Layers that ranks split have gradients in f32 alone.
std::int64_t RoundedBytes(const model::Model& model) {
  constexpr std::int64_t kBf16Bytes = 2;
  if (!model.precisions.RoundsGradientsOnce() || model.tensor.splits()) return 0;
  if (model.precisions.residual == model::Precision::kBf16) return 0;  // all is rounded once
  const std::int64_t rows = std::int64_t{model.microbatch} * model.config.context;
  return RoundUp(kBf16Bytes * rows * model.config.hidden, kLineBytes);
}

std::int64_t WidenedBytes(const model::Model& model) {
  if (model.precisions.residual == model::Precision::kF32) return 0;
  const bool all_stream = model.precisions.stream() == model::Precision::kBf16 &&
                          !model.tensor.splits() && !model.config.mixture.has_value();
  if (all_stream) return 0;
  return RoundUp(2 * model.layers.front().cost.output_bytes, kLineBytes);
}

}  // namespace

HeadLogits HeadLogitsOf(const model::Model& model, const program::Program& program) {
  if (program::SpreadsVocabulary(program)) return HeadLogits::kSpread;
  return program::SlicesHead(model, program) ? HeadLogits::kSliced : HeadLogits::kStashed;
}

StageLayout LayOutStage(const model::Model& model, const mesh::Stage& stage, HeadLogits logits) {
  StageLayout layout{.rounded_bytes = RoundedBytes(model), .widened_bytes = WidenedBytes(model)};
  const std::int64_t begin = 2 * (layout.rounded_bytes + layout.widened_bytes);
  Regions kept, recomputed;
  for (LayerId id = stage.first_layer; id < stage.last_layer; ++id) {
    const model::Layer& layer = model.layers[id.value()];
    StageLayout::LayerPlace place{.layer = id,
                                  .stash = LayOutStash(layer, stage.recompute, logits),
                                  .sliced = IsHead(layer) && logits == HeadLogits::kSliced};
    place.kept = kept.Add(place.stash.kept_bytes());
    place.recomputed = recomputed.Add(place.stash.recomputed_bytes());
    if (id.value() + 1 < stage.last_layer.value()) {
      place.output_bytes = layer.cost.output_bytes;
      place.output = kept.Add(place.output_bytes);
      place.output_room = kept.size() - place.output;
    }
    layout.scratch_bytes =
        std::max(layout.scratch_bytes,
                 IsHead(layer) ? LayOutScratch(HeadScratchOf(model, layer, logits), begin, place)
                               : LayOutScratch(layer.scratch, begin, place));
    layout.layers.push_back(std::move(place));
  }
  layout.stash_bytes = kept.size();
  layout.recomputed_bytes = recomputed.size();
  return layout;
}

}  // namespace takt::layout
