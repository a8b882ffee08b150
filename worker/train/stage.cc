// SPDX-License-Identifier: Apache-2.0
#include "worker/train/stage.h"

#include "common/base/status.h"

namespace takt::train {

Stage::Stage(const StageOptions& options)
    : model_(options.model),
      layout_(options.layout),
      backend_(options.backend),
      scratch_(options.scratch),
      observer_(options.observer),
      passed_on_(model_.layers.front().cost.output_bytes / std::int64_t{sizeof(backend::Bf16)}) {
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
    TAKT_CHECK(!Widens(layers_.size() - 1) || layout_.widened_bytes > 0);
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

absl::Status Stage::Backward(const StageBuffers& buffers, bool accumulate, const LossCall& loss) {
  for (std::size_t i = layers_.size(); i-- > 0;) {
    RETURN_IF_ERROR(BackwardLayer(buffers, accumulate, i, loss));
  }
  return absl::OkStatus();
}

absl::Status Stage::ForwardLayer(const StageBuffers& buffers, const LossCall& loss, std::size_t i) {
  ASSIGN_OR_RETURN(const backend::Operand input, Read(i, InputOf(buffers, i), Room::kInput));
  void* const output = OutputOf(buffers, i);
  RETURN_IF_ERROR(layers_[i]->Forward({.backend = &backend_,
                                       .view = buffers.view,
                                       .input = input,
                                       .output = Written(i, output, Room::kOutput),
                                       .stash = ForwardStash(buffers, i),
                                       .scratch = scratch_,
                                       .loss_scale = loss.scale,
                                       .loss_sum = loss.sum,
                                       .expert_counts = ExpertCountsOf(loss, i),
                                       .probe = {observer_, buffers.microbatch, &backend_}}));
  return PassOn(i, output, Room::kOutput);
}

absl::Status Stage::BackwardLayer(const StageBuffers& buffers, bool accumulate, std::size_t i,
                                  const LossCall& loss) {
  RETURN_IF_ERROR(InputGradLayer(buffers, i, /*with_w=*/accumulate, loss));
  return WeightGradLayer({&buffers, 1}, accumulate, i, /*follows_i=*/true);
}

absl::Status Stage::InputGradLayer(const StageBuffers& buffers, std::size_t i,
                                   std::optional<bool> with_w, const LossCall& loss) {
  const StashMemory stash = BackwardStash(buffers, i);
  ASSIGN_OR_RETURN(const backend::Operand input, Read(i, InputOf(buffers, i), Room::kInput));
  if (layout_.layers[i].stash.recomputed_bytes() > 0) {
    RETURN_IF_ERROR(layers_[i]->Recompute({.backend = &backend_,
                                           .view = buffers.view,
                                           .input = input,
                                           .stash = stash,
                                           .scratch = scratch_}));
  }
  ASSIGN_OR_RETURN(const backend::Operand d_output, Read(i, DOutput(buffers, i), Room::kOutput));
  void* const d_input = DInput(buffers, i);
  backend::Bf16* const rounded = RoundedDInput(buffers, i);
  RETURN_IF_ERROR(layers_[i]->InputGrad({.backend = &backend_,
                                         .view = buffers.view,
                                         .input = input,
                                         .d_output = d_output,
                                         .d_input = Written(i, d_input, Room::kInput),
                                         .d_output_rounded = RoundedDOutput(buffers, i),
                                         .d_input_rounded = rounded,
                                         .stash = stash,
                                         .scratch = scratch_,
                                         .with_w = with_w,
                                         .loss_scale = loss.scale,
                                         .loss_sum = loss.sum,
                                         .probe = {observer_, buffers.microbatch, &backend_}}));
  return rounded == d_input ? absl::OkStatus() : PassOn(i, d_input, Room::kInput);
}

absl::Status Stage::WeightGradLayer(std::span<const StageBuffers> microbatches, bool accumulate,
                                    std::size_t i, bool follows_i) {
  // No program has a W of several microbatches where their gradients would share the room.
  TAKT_CHECK(microbatches.size() == 1 || !PassesBf16());
  std::vector<WeightGradInput> inputs;
  for (const StageBuffers& buffers : microbatches) {
    const void* const passed_on = DOutput(buffers, i);
    backend::Operand d_output = Written(i, const_cast<void*>(passed_on), Room::kOutput);
    if (!follows_i) {
      ASSIGN_OR_RETURN(d_output, Read(i, passed_on, Room::kOutput));
    }
    inputs.push_back({.view = buffers.view,
                      .d_output = d_output,
                      .d_output_rounded = follows_i ? RoundedDOutput(buffers, i) : nullptr,
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

std::byte* Stage::Between(const StageBuffers& buffers, std::size_t i) const {
  const layout::StageLayout::LayerPlace& place = layout_.layers[i];
  return buffers.stash.At(place.output, place.output_room);
}

const void* Stage::InputOf(const StageBuffers& buffers, std::size_t i) const {
  return i == 0 ? buffers.input : Between(buffers, i - 1);
}

void* Stage::OutputOf(const StageBuffers& buffers, std::size_t i) const {
  return i + 1 == layers_.size() ? buffers.output : Between(buffers, i);
}

const void* Stage::DOutput(const StageBuffers& buffers, std::size_t i) const {
  return i + 1 == layers_.size() ? buffers.d_output : Between(buffers, i);
}

void* Stage::DInput(const StageBuffers& buffers, std::size_t i) const {
  return i == 0 ? buffers.d_input : Between(buffers, i - 1);
}

float* Stage::At(Room room) const {
  return reinterpret_cast<float*>(scratch_ + (room == Room::kOutput ? layout_.widened_bytes : 0));
}

absl::StatusOr<backend::Operand> Stage::Read(std::size_t i, const void* passed_on,
                                             Room room) const {
  if (passed_on == nullptr) return backend::Operand();
  if (!PassesBf16()) return backend::Operand(static_cast<const float*>(passed_on));
  const backend::Operand in_bf16 = static_cast<const backend::Bf16*>(passed_on);
  if (!Widens(i)) return in_bf16;
  RETURN_IF_ERROR(
      backend_.Run(backend::Copy{.input = in_bf16, .output = At(room), .count = passed_on_}));
  return backend::Operand(At(room));
}

backend::Output Stage::Written(std::size_t i, void* passed_on, Room room) const {
  if (passed_on == nullptr) return {};
  if (Widens(i)) return At(room);
  return TensorAt(static_cast<std::byte*>(passed_on), PassesBf16());
}

absl::Status Stage::PassOn(std::size_t i, void* passed_on, Room room) const {
  if (passed_on == nullptr || !Widens(i)) return absl::OkStatus();
  return backend_.Run(backend::Copy{
      .input = At(room), .output = static_cast<backend::Bf16*>(passed_on), .count = passed_on_});
}

const backend::Bf16* Stage::RoundedDOutput(const StageBuffers& buffers, std::size_t i) const {
  if (!PassesBf16()) return i + 1 < layers_.size() ? RoundedBelow(i + 1) : nullptr;
  if (!RoundsGradients() || !Widens(i)) return nullptr;
  return static_cast<const backend::Bf16*>(DOutput(buffers, i));
}

backend::Bf16* Stage::RoundedDInput(const StageBuffers& buffers, std::size_t i) const {
  if (!PassesBf16()) return RoundedBelow(i);
  if (!RoundsGradients() || !Widens(i)) return nullptr;
  return static_cast<backend::Bf16*>(DInput(buffers, i));
}

bool Stage::RoundsGradients() const {
  return model_.precisions.RoundsGradientsOnce() && !model_.tensor.splits();
}

backend::Bf16* Stage::RoundedBelow(std::size_t i) const {
  if (layout_.rounded_bytes == 0 || i == 0) return nullptr;
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
