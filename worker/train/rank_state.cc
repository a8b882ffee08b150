// SPDX-License-Identifier: Apache-2.0
#include "worker/train/rank_state.h"

#include <set>
#include <span>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/model/llama.h"
#include "common/program/program.h"

namespace takt::train {

using backend::StreamKind;

absl::StatusOr<std::unique_ptr<RankState>> RankState::Create(const TrainerOptions& options) {
  auto state = std::make_unique<RankState>(options);
  state->layout = layout::LayOutRank({.model = *options.model,
                                      .partition = *options.partition,
                                      .program = *options.program,
                                      .validation = options.validation_program,
                                      .vocabulary_ends = options.vocabulary_ends});
  ASSIGN_OR_RETURN(state->compute, options.backends->CreateCompute());
  ASSIGN_OR_RETURN(state->reduce, options.backends->CreateMemory(StreamKind::kReduce));
  ASSIGN_OR_RETURN(state->load, options.backends->CreateMemory(StreamKind::kTransfer));
  RETURN_IF_ERROR(state->CreateParameters());
  RETURN_IF_ERROR(state->CreateMeetings());
  RETURN_IF_ERROR(state->CreateStages());
  RETURN_IF_ERROR(state->CreateShards());
  return state;
}

transport::Collective* RankState::ReplicasOf(StageId stage) const {
  const auto group = options.replicas.find(stage);
  return group == options.replicas.end() ? nullptr : group->second;
}

ResultGroups RankState::Groups() const {
  const mesh::Stage& last = options.partition->back();
  return {.last_stage = ReplicasOf(last.id),
          .tells_loss = program::IsPrimary(*options.program, last.id),
          .pipeline = options.pp_group};
}

absl::Status RankState::CreateParameters() {
  std::set<LayerId> second_copies;
  for (const auto& [id, stage] : layout.stages) {
    if (program::IsPrimary(*options.program, id)) continue;
    for (const layout::StageLayout::LayerPlace& place : stage.layers)
      second_copies.insert(place.layer);
  }
  ASSIGN_OR_RETURN(parameters, ParameterStore::Create(*options.model, layout.parameters, *compute,
                                                      second_copies, layout.rows));
  return absl::OkStatus();
}

absl::Status RankState::CreateMeetings() {
  const model::Model& model = *options.model;
  if (!model.tensor.splits()) return absl::OkStatus();
  const int size = options.tensor_group == nullptr ? 1 : options.tensor_group->size();
  if (size != model.tensor.size) {
    return absl::InvalidArgumentError(absl::StrCat("layers are split over ", model.tensor.size,
                                                   " ranks, but the group of this rank has ",
                                                   size));
  }
  if (!compute->memory_is_host() && !options.shapes_only) {
    return absl::InvalidArgumentError(
        "layers are split over devices, whose memory the meetings of their ranks cannot reach");
  }
  if (program::IsAsynchronous(*options.program)) {
    return absl::InvalidArgumentError(
        "layers are split, but without a flush nothing sums the gradients of what is not");
  }
  meetings = std::make_unique<TensorMeetings>(
      TensorMeetings::Options{.group = options.tensor_group,
                              .cursor = &part_cursor,
                              .share = model.tensor,
                              .rows = std::int64_t{model.microbatch} * model.config.context,
                              .columns = model.config.hidden,
                              .vocab = model.config.vocab,
                              .shapes_only = options.shapes_only});
  return absl::OkStatus();
}

absl::Status RankState::CreateStages() {
  RETURN_IF_ERROR(AllocateShared());
  for (const auto& [id, stage] : layout.stages) {
    stages.try_emplace(id, StageOptions{.model = *options.model,
                                        .layout = stage,
                                        .parameters = *parameters,
                                        .backend = *compute,
                                        .scratch = scratch,
                                        .rotary_table = rotary_table,
                                        .meetings = meetings.get(),
                                        .observer = options.observer});
    has_gradients[id] = false;
  }
  if (!layout.vocabulary.has_value()) return absl::OkStatus();
  ASSIGN_OR_RETURN(vocabulary,
                   SpreadState::Create(options, layout, *parameters,
                                       {.layers = scratch, .meetings = meeting_scratch}));
  return absl::OkStatus();
}

absl::Status RankState::CreateShards() {
  if (!program::ShardsOptimizer(*options.program)) return absl::OkStatus();
  if (meetings != nullptr) {
    return absl::InvalidArgumentError(
        "ranks that split layers sum gradients of what is not split, and those of shards have none "
        "but their own");
  }
  if (options.model->precisions.products == model::Precision::kBf16) {
    return absl::InvalidArgumentError(
        "OPT packs weights in bf16 before GATHER_WEIGHTS has brought those of other ranks");
  }
  const bool is_tied = !options.model->layers.back().tied_parameters.empty();
  if (is_tied && options.program->mirror.value() >= 0) {
    return absl::InvalidArgumentError(
        "each of two copies sums the two ends of a pipeline in another order of ranks, so a tied "
        "table would have two shards on each");
  }
  std::vector<ShardState::Group> groups;
  for (const auto& [id, stage] : layout.stages) {
    ShardState::Group& group = groups.emplace_back(ShardState::Group{.replicas = ReplicasOf(id)});
    for (const layout::StageLayout::LayerPlace& place : stage.layers) {
      const LayerParameters& layer = parameters->Layer(place.layer);
      if (!layer.refs.empty()) group.layers.push_back(&layer);
    }
  }
  if (layout.vocabulary.has_value()) {
    const StageId rows(options.program->num_stages);
    ShardState::Group& group = groups.emplace_back(ShardState::Group{.replicas = ReplicasOf(rows)});
    const auto last = static_cast<std::int32_t>(options.model->layers.size()) - 1;
    for (const LayerId use : {LayerId(0), LayerId(last)}) {
      if (const LayerParameters* const layer = parameters->Rows(use)) group.layers.push_back(layer);
    }
  }
  for (const ShardState::Group& group : groups) {
    if (group.replicas != nullptr) continue;
    return absl::InvalidArgumentError(
        "no other rank holds a stage, so none can share the optimizer's state");
  }
  ASSIGN_OR_RETURN(shards, ShardState::Create(groups, *compute));
  return absl::OkStatus();
}

// Allocates what all stages share, and fills the rotary table.
absl::Status RankState::AllocateShared() {
  ASSIGN_OR_RETURN(shared, SectionMemory::Create(layout.shared, *compute));
  for (const layout::Tensor& tensor : layout.shared.tensors) {
    if (tensor.role == layout::Role::kLayerScratch) scratch = shared.At(tensor);
    if (tensor.role == layout::Role::kMeetingScratch) meeting_scratch = shared.At(tensor);
    if (tensor.role == layout::Role::kRotaryTable) rotary_table = shared.FloatsAt(tensor);
  }
  if (rotary_table == nullptr || options.shapes_only) return absl::OkStatus();
  const std::vector<float> table = model::RotaryTable(options.model->config);
  RETURN_IF_ERROR(compute->CopyFromHost(std::as_bytes(std::span(table)),
                                        reinterpret_cast<std::byte*>(rotary_table)));
  return compute->Synchronize();
}

}  // namespace takt::train
