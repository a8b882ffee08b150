// SPDX-License-Identifier: Apache-2.0
#include "worker/train/stage.h"

#include "common/base/status.h"

namespace takt::train {

Stage::Stage(const StageOptions& options)
    : model_(options.model),
      layout_(options.layout),
      backend_(options.backend),
      scratch_(options.scratch),
      observer_(options.observer) {
  for (const layout::StageLayout::LayerPlace& place : layout_.layers) {
    layers_.push_back(MakeLayer({.model = options.model,
                                 .layer = options.model.layers[place.layer.value()],
                                 .parameters = options.parameters.Layer(place.layer),
                                 .place = place,
                                 .rotary_table = options.rotary_table,
                                 .auxiliary_scale = options.auxiliary_scale,
                                 .meetings = options.meetings,
                                 .context = options.context,
                                 .experts = options.experts}));
  }
}

absl::Status Stage::Forward(const StageBuffers& buffers, const LossCall& loss) {
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    RETURN_IF_ERROR(ForwardLayer(buffers, loss, i));
  }
  return absl::OkStatus();
}

absl::Status Stage::InputGrad(const StageBuffers& buffers) {
  for (std::size_t i = layers_.size(); i-- > 0;)
    RETURN_IF_ERROR(InputGradLayer(buffers, i, /*with_w=*/std::nullopt));
  return absl::OkStatus();
}

absl::Status Stage::WeightGrad(std::span<const StageBuffers> microbatches, bool accumulate) {
  for (std::size_t i = layers_.size(); i-- > 0;) {
    RETURN_IF_ERROR(WeightGradLayer(microbatches, accumulate, i, /*follows_i=*/false));
  }
  return absl::OkStatus();
}

absl::Status Stage::Backward(const StageBuffers& buffers, bool accumulate) {
  for (std::size_t i = layers_.size(); i-- > 0;) {
    RETURN_IF_ERROR(BackwardLayer(buffers, accumulate, i));
  }
  return absl::OkStatus();
}

absl::Status Stage::ForwardLayer(const StageBuffers& buffers, const LossCall& loss, std::size_t i) {
  return layers_[i]->Forward(
      {.backend = &backend_,
       .view = buffers.view,
       .input = InputOf(buffers, i),
       .output = i + 1 == layers_.size() ? buffers.output : Between(buffers, i),
       .stash = ForwardStash(buffers, i),
       .scratch = scratch_,
       .loss_scale = loss.scale,
       .loss_sum = loss.sum,
       .expert_counts = ExpertCountsOf(loss, i),
       .probe = {observer_, buffers.microbatch, &backend_}});
}

absl::Status Stage::BackwardLayer(const StageBuffers& buffers, bool accumulate, std::size_t i) {
  RETURN_IF_ERROR(InputGradLayer(buffers, i, /*with_w=*/accumulate));
  return WeightGradLayer({&buffers, 1}, accumulate, i, /*follows_i=*/true);
}

absl::Status Stage::InputGradLayer(const StageBuffers& buffers, std::size_t i,
                                   std::optional<bool> with_w) {
  const StashMemory stash = BackwardStash(buffers, i);
  if (layout_.layers[i].stash.recomputed_bytes() > 0) {
    RETURN_IF_ERROR(layers_[i]->Recompute({.backend = &backend_,
                                           .view = buffers.view,
                                           .input = InputOf(buffers, i),
                                           .stash = stash,
                                           .scratch = scratch_}));
  }
  return layers_[i]->InputGrad({.backend = &backend_,
                                .view = buffers.view,
                                .input = InputOf(buffers, i),
                                .d_output = DOutput(buffers, i),
                                .d_input = i == 0 ? buffers.d_input : Between(buffers, i - 1),
                                .d_output_rounded = RoundedDInput(i + 1),
                                .d_input_rounded = RoundedDInput(i),
                                .stash = stash,
                                .scratch = scratch_,
                                .with_w = with_w,
                                .probe = {observer_, buffers.microbatch, &backend_}});
}

absl::Status Stage::WeightGradLayer(std::span<const StageBuffers> microbatches, bool accumulate,
                                    std::size_t i, bool follows_i) {
  std::vector<WeightGradInput> inputs;
  for (const StageBuffers& buffers : microbatches) {
    inputs.push_back({.view = buffers.view,
                      .d_output = DOutput(buffers, i),
                      .d_output_rounded = follows_i ? RoundedDInput(i + 1) : nullptr,
                      .stash = BackwardStash(buffers, i),
                      .scratch = follows_i ? scratch_ : nullptr});
  }
  return layers_[i]->WeightGrad({.backend = &backend_,
                                 .microbatches = inputs,
                                 .accumulate = accumulate,
                                 .follows_i = follows_i});
}

std::int32_t* Stage::ExpertCountsOf(const LossCall& loss, std::size_t i) const {
  const model::Layer& layer = model_.layers[layout_.layers[i].layer.value()];
  if (loss.expert_counts == nullptr || !model::HasExperts(layer.kind)) return nullptr;
  return loss.expert_counts + std::int64_t{layer.block} * model_.config.mixture->experts;
}

float* Stage::Between(const StageBuffers& buffers, std::size_t i) const {
  const layout::StageLayout::LayerPlace& place = layout_.layers[i];
  return reinterpret_cast<float*>(buffers.stash.At(place.output, place.output_room));
}

const float* Stage::InputOf(const StageBuffers& buffers, std::size_t i) const {
  return i == 0 ? buffers.input : Between(buffers, i - 1);
}

const float* Stage::DOutput(const StageBuffers& buffers, std::size_t i) const {
  return i + 1 == layers_.size() ? buffers.d_output : Between(buffers, i);
}

backend::Bf16* Stage::RoundedDInput(std::size_t i) const {
  if (layout_.rounded_bytes == 0 || i == 0 || i >= layers_.size()) return nullptr;
  // An embedding has no products.
  const LayerId below = layout_.layers[i - 1].layer;
  if (model_.layers[below.value()].kind == model::LayerKind::kEmbedding) return nullptr;
  const bool odd = i % 2 != 0;
  return reinterpret_cast<backend::Bf16*>(scratch_ + (odd ? layout_.rounded_bytes : 0));
}

StashMemory Stage::ForwardStash(const StageBuffers& buffers, std::size_t i) const {
  const layout::StageLayout::LayerPlace& place = layout_.layers[i];
  return {buffers.stash.From(place.kept), SlotRoom(scratch_ + place.recomputed_in_scratch)};
}

StashMemory Stage::BackwardStash(const StageBuffers& buffers, std::size_t i) const {
  const layout::StageLayout::LayerPlace& place = layout_.layers[i];
  return {buffers.stash.From(place.kept), buffers.recomputed.base != nullptr
                                              ? buffers.recomputed.From(place.recomputed)
                                              : SlotRoom(scratch_ + place.recomputed_in_scratch)};
}

}  // namespace takt::train
