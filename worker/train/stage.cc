// SPDX-License-Identifier: Apache-2.0
#include "worker/train/stage.h"

#include <algorithm>

#include "common/base/status.h"
#include "worker/train/regions.h"

namespace takt::train {

Stage::Stage(const model::Model& model, const mesh::Stage& stage, const ParameterStore& parameters,
             backend::Backend& backend)
    : backend_(backend) {
  const std::int64_t activation =
      std::int64_t{model.microbatch} * model.config.context * model.config.hidden;
  Regions regions;
  for (LayerId id = stage.first_layer; id < stage.last_layer; ++id) {
    Link link{.layer = MakeLayer(model, id, parameters.Layer(id))};
    link.stash = regions.Add(link.layer->stash_floats());
    if (id.value() + 1 < stage.last_layer.value()) link.output = regions.Add(activation);
    scratch_floats_ = std::max(scratch_floats_, link.layer->scratch_floats());
    links_.push_back(std::move(link));
  }
  stash_floats_ = regions.size();
}

absl::Status Stage::Forward(const StageBuffers& buffers, const LossCall& loss) {
  for (std::size_t i = 0; i < links_.size(); ++i) {
    RETURN_IF_ERROR(ForwardLayer(buffers, loss, i));
  }
  return absl::OkStatus();
}

absl::Status Stage::InputGrad(const StageBuffers& buffers) {
  for (std::size_t i = links_.size(); i-- > 0;) RETURN_IF_ERROR(InputGradLayer(buffers, i));
  return absl::OkStatus();
}

absl::Status Stage::WeightGrad(const StageBuffers& buffers, bool accumulate) {
  for (std::size_t i = links_.size(); i-- > 0;) {
    RETURN_IF_ERROR(WeightGradLayer(buffers, accumulate, i));
  }
  return absl::OkStatus();
}

absl::Status Stage::ForwardLayer(const StageBuffers& buffers, const LossCall& loss, std::size_t i) {
  const Link& link = links_[i];
  return link.layer->Forward(
      {.backend = &backend_,
       .view = buffers.view,
       .input = i == 0 ? buffers.input : buffers.stash + links_[i - 1].output,
       .output = i + 1 == links_.size() ? buffers.output : buffers.stash + link.output,
       .stash = buffers.stash + link.stash,
       .gradient = loss.gradient,
       .loss_scale = loss.scale,
       .loss_sum = loss.sum,
       .probe = {observer_, buffers.microbatch}});
}

absl::Status Stage::InputGradLayer(const StageBuffers& buffers, std::size_t i) {
  float* between = i == 0 ? nullptr : buffers.stash + links_[i - 1].output;
  return links_[i].layer->InputGrad({.backend = &backend_,
                                     .input = i == 0 ? buffers.input : between,
                                     .d_output = DOutput(buffers, i),
                                     .d_input = i == 0 ? buffers.d_input : between,
                                     .stash = buffers.stash + links_[i].stash,
                                     .scratch = scratch_,
                                     .probe = {observer_, buffers.microbatch}});
}

absl::Status Stage::WeightGradLayer(const StageBuffers& buffers, bool accumulate, std::size_t i) {
  return links_[i].layer->WeightGrad({.backend = &backend_,
                                      .view = buffers.view,
                                      .d_output = DOutput(buffers, i),
                                      .stash = buffers.stash + links_[i].stash,
                                      .accumulate = accumulate});
}

const float* Stage::DOutput(const StageBuffers& buffers, std::size_t i) const {
  return i + 1 == links_.size() ? buffers.d_output : buffers.stash + links_[i].output;
}

}  // namespace takt::train
