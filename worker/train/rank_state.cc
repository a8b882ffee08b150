// SPDX-License-Identifier: Apache-2.0
#include "worker/train/rank_state.h"

#include <cstdint>
#include <iterator>
#include <numeric>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/model/context_layers.h"
#include "common/model/llama.h"
#include "common/model/shared_mixture.h"
#include "common/program/program.h"
#include "common/program/split_pairs.h"

namespace takt::train {

using backend::StreamKind;

namespace {

// Checks that the replicas have equally many leaves, and these equally many microbatches.
absl::Status CheckLeaves(const TrainerOptions& options) {
  const int leaves = options.job->parallelism.data_leaves, replicas = options.mesh.dp_size;
  if (leaves == 0) return absl::OkStatus();
  const bool divides =
      leaves % replicas == 0 && options.program->num_microbatches % (leaves / replicas) == 0;
  if (divides) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(leaves, " leaves do not divide into ", replicas, " replicas with ",
                   options.program->num_microbatches, " microbatches each"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<RankState>> RankState::Create(const TrainerOptions& options) {
  RETURN_IF_ERROR(CheckLeaves(options));
  auto state = std::make_unique<RankState>(options);
  state->layout = layout::LayOutRank({.model = *options.model,
                                      .partition = *options.partition,
                                      .program = *options.program,
                                      .validation = options.validation_program,
                                      .num_replicas = options.mesh.num_replicas(),
                                      .vocabulary_ends = options.vocabulary_ends,
                                      .replica = options.mesh.ReplicaOf(options.rank),
                                      .leaves = state->leaves()});
  ASSIGN_OR_RETURN(state->compute, options.backends->CreateCompute());
  ASSIGN_OR_RETURN(state->reduce, options.backends->CreateMemory(StreamKind::kReduce));
  ASSIGN_OR_RETURN(state->load, options.backends->CreateMemory(StreamKind::kTransfer));
  RETURN_IF_ERROR(state->CreateParameters());
  if (state->RunsHalvesBeside()) state->pair = std::make_unique<PairState>(*state->compute);
  RETURN_IF_ERROR(state->AllocateShared());
  RETURN_IF_ERROR(state->CreateMeetings());
  RETURN_IF_ERROR(state->CreateExpertMeetings());
  RETURN_IF_ERROR(state->CreateContextMeetings());
  RETURN_IF_ERROR(state->CreateStages());
  ASSIGN_OR_RETURN(state->shards, ShardState::CreateFor(options, state->layout, *state->parameters,
                                                        *state->reduce));
  return state;
}

transport::Collective* RankState::ReplicasOf(StageId stage) const {
  const auto group = options.replicas.find(stage);
  return group == options.replicas.end() ? nullptr : group->second;
}

GradientGroups RankState::GradientGroupsOf(StageId stage) const {
  const auto holders = options.expert_holders.find(stage);
  return {.replicas = ReplicasOf(stage),
          .holders = holders == options.expert_holders.end() ? nullptr : holders->second,
          .copies = options.program->mirror.value() < 0 ? 1 : 2,
          .share = options.model->experts,
          .backend = reduce.get()};
}

ResultGroups RankState::Groups() const {
  const mesh::Stage& last = options.partition->back();
  return {.last_stage = ReplicasOf(last.id),
          .tells_loss = program::IsPrimary(*options.program, last.id),
          .pipeline = options.pp_group,
          .tensor = options.norm_group};
}

// Replicas that share the optimizer's state gather foreseen weights on the lane of NORM_EXCHANGE,
// before it. If SPECULATE waited for the norm, both would wait for ever.
bool RankState::AlwaysForesees(const TrainerOptions& options) {
  return options.job->barrier == config::Barrier::kNever ||
         program::ShardsOptimizer(*options.program);
}

int RankState::leaves() const {
  return options.job->parallelism.LeavesPerReplica(options.mesh.dp_size);
}

bool RankState::BeginsLeaf(MicrobatchId microbatch) const {
  return leaves() > 1 && microbatch.value() % (options.program->num_microbatches / leaves()) == 0;
}

absl::Status RankState::KeepLeaf(backend::Backend& backend, StageId stage,
                                 MicrobatchId microbatch) {
  const int of_leaf = options.program->num_microbatches / leaves();
  const int done = (microbatch.value() + 1) / of_leaf;
  if ((microbatch.value() + 1) % of_leaf != 0 || done == leaves()) return absl::OkStatus();
  for (const layout::StageLayout::LayerPlace& place : layout.stages.at(stage).layers) {
    const LayerParameters& layer = parameters->Layer(place.layer);
    if (layer.gradients.empty()) continue;
    RETURN_IF_ERROR(
        backend.Run(backend::Copy{.input = layer.gradients.data(),
                                  .output = layer.leaves.Of(layer.gradients.data(), done - 1),
                                  .count = std::ssize(layer.gradients)}));
  }
  return absl::OkStatus();
}

absl::Status RankState::Pack(int version) {
  if (parameters->frees()) return absl::OkStatus();
  if (shards == nullptr) return parameters->PackAfterUpdate(*compute, version);
  for (const auto& [id, stage] : stages) not_packed.emplace(id, version);
  if (vocabulary != nullptr && version != program::kForeseen)
    not_packed.emplace(options.program->num_stages, version);
  return absl::OkStatus();
}

absl::Status RankState::PackGathered(StageId stage, int version) {
  if (parameters->frees()) return parameters->PackWhole(*compute, stage);
  if (not_packed.erase({stage, version}) == 0) return absl::OkStatus();
  const auto held = layout.stages.find(stage);
  if (held == layout.stages.end()) {
    const auto last = static_cast<std::int32_t>(options.model->layers.size()) - 1;
    const LayerParameters* const head = parameters->Rows(LayerId(last));
    return head == nullptr ? absl::OkStatus() : parameters->Pack(*compute, *head, version);
  }
  for (const layout::StageLayout::LayerPlace& place : held->second.layers)
    RETURN_IF_ERROR(parameters->Pack(*compute, parameters->Layer(place.layer), version));
  return absl::OkStatus();
}

absl::Status RankState::ReadyWeights(std::span<const StageId> ids, int version,
                                     engine::PairHalf half) {
  const engine::PairTurn turn(pair == nullptr ? nullptr : &pair->turns, half);
  for (const StageId stage : ids) RETURN_IF_ERROR(PackGathered(stage, version));
  parameters->SelectVersion(version);
  return absl::OkStatus();
}

// All ranks that meet in a pair return the same value. Both halves read the version of the weights
// that was selected last, so they must read the same one.
bool RankState::RunsHalvesBeside() const {
  const bool has_groups =
      (options.tensor_group == nullptr || options.pair_tensor_group != nullptr) &&
      (options.context_group == nullptr || options.pair_context_group != nullptr);
  return has_groups && program::PairsMeet(*options.program) &&
         program::PairsReadOneVersion(*options.program) && compute->memory_is_host() &&
         !options.shapes_only;
}

absl::Status RankState::CreateParameters() {
  std::set<LayerId> second_copies;
  for (const auto& [id, stage] : layout.stages) {
    if (program::IsPrimary(*options.program, id)) continue;
    for (const layout::StageLayout::LayerPlace& place : stage.layers)
      second_copies.insert(place.layer);
  }
  ASSIGN_OR_RETURN(parameters, ParameterStore::Create(*options.model, layout.parameters, *compute,
                                                      second_copies, layout.rows, layout.whole));
  return absl::OkStatus();
}

double RankState::AuxiliaryScale() const {
  const std::optional<model::Mixture>& mixture = options.model->config.mixture;
  if (!mixture.has_value()) return 0;
  const bool updates_microbatches = program::UpdatesEachMicrobatch(*options.program);
  return mixture->auxiliary_loss /
         (updates_microbatches ? options.model->microbatch : options.job->global_batch);
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
  if (program::IsAsynchronous(*options.program)) {
    return absl::InvalidArgumentError(
        "layers are split, but without a flush nothing sums the gradients of what is not");
  }
  if (options.program->mirror.value() >= 0) {
    return absl::InvalidArgumentError(
        "layers are split, but of two copies of the weights the second one's gradients may be "
        "incomplete when those of what is not split are added up");
  }
  if (program::ShardsOptimizer(*options.program) && model.tensor.leaves_here() > 1) {
    return absl::InvalidArgumentError(
        "replicas share the optimizer's state, so each leaf needs a rank of its own");
  }
  TensorMeetings::Options about{.group = options.tensor_group,
                                .cursor = &part_cursor,
                                .backend = compute.get(),
                                .share = model.tensor,
                                .rows = std::int64_t{model.microbatch} * model.config.context,
                                .columns = model.config.hidden,
                                .vocab = model.config.vocab};
  if (pair != nullptr) about.backend = &pair->forward;
  ASSIGN_OR_RETURN(meetings, TensorMeetings::Create(about));
  if (pair == nullptr) return absl::OkStatus();
  about.group = options.pair_tensor_group;
  about.cursor = &pair->cursor;
  about.backend = &pair->backward;
  ASSIGN_OR_RETURN(pair->meetings, TensorMeetings::Create(about));
  return absl::OkStatus();
}

absl::Status RankState::CreateExpertMeetings() {
  const model::ExpertShare& share = options.model->experts;
  if (!share.shares()) return absl::OkStatus();
  const int size = options.tensor_group == nullptr ? 1 : options.tensor_group->size();
  if (size != share.size) {
    return absl::InvalidArgumentError(absl::StrCat(
        "experts are shared by ", share.size, " ranks, but the group of this rank has ", size));
  }
  if (program::IsAsynchronous(*options.program) || program::ShardsOptimizer(*options.program)) {
    return absl::InvalidArgumentError(
        "replicas share experts, so their gradients are summed at the end of a step and updated "
        "by each of those that have them");
  }
  ExpertMeetings::Options about{.group = options.tensor_group,
                                .cursor = &part_cursor,
                                .backend = compute.get(),
                                .share = share,
                                .experts = options.model->config.mixture->experts,
                                .row_numbers = row_numbers,
                                .shapes_only = options.shapes_only};
  if (pair != nullptr) about.backend = &pair->forward;
  ASSIGN_OR_RETURN(experts, ExpertMeetings::Create(about));
  if (pair == nullptr) return absl::OkStatus();
  about.group = options.pair_tensor_group;
  about.cursor = &pair->cursor;
  about.backend = &pair->backward;
  about.arrivals_of = experts.get();
  ASSIGN_OR_RETURN(pair->experts, ExpertMeetings::Create(about));
  return absl::OkStatus();
}

absl::Status RankState::CreateContextMeetings() {
  const model::Model& model = *options.model;
  const int size = options.context_group == nullptr ? 1 : options.context_group->size();
  if (size != model.context_ranks) {
    return absl::InvalidArgumentError(absl::StrCat("sequences are shared by ", model.context_ranks,
                                                   " ranks, but the group of this rank has ",
                                                   size));
  }
  if (size == 1) return absl::OkStatus();
  const auto refuse = [](const char* why) {
    return absl::InvalidArgumentError(absl::StrCat("ranks share sequences, but ", why));
  };
  if (!compute->memory_is_host() && !options.shapes_only)
    return refuse("their meetings cannot reach the memory of devices");
  if (program::IsAsynchronous(*options.program))
    return refuse("without a flush a rank counts the scored tokens of its own microbatches alone");
  if (options.program->mirror.value() >= 0)
    return refuse("they cannot have two copies of the weights yet");
  if (program::SpreadsVocabulary(*options.program))
    return refuse("they cannot spread the vocabulary yet");
  ContextMeetings::Options about{.group = options.context_group,
                                 .cursor = &part_cursor,
                                 .batch = model.microbatch,
                                 .context = model.config.context,
                                 .columns = model::KeyColumns(model.config),
                                 .window = model.config.EffectiveWindow(),
                                 .shapes_only = options.shapes_only};
  context = std::make_unique<ContextMeetings>(about);
  if (pair == nullptr) return absl::OkStatus();
  about.group = options.pair_context_group;
  about.cursor = &pair->cursor;
  pair->context = std::make_unique<ContextMeetings>(about);
  return absl::OkStatus();
}

StageOptions RankState::OptionsOf(const layout::StageLayout& stage) const {
  backend::Backend* const in_turns = pair == nullptr ? nullptr : &pair->forward;
  return {.model = *options.model,
          .layout = stage,
          .parameters = *parameters,
          .backend = in_turns == nullptr ? *compute : *in_turns,
          .scratch = scratch,
          .rotary_table = rotary_table,
          .auxiliary_scale = AuxiliaryScale(),
          .meetings = meetings.get(),
          .context = context.get(),
          .experts = experts.get(),
          .observer = options.observer};
}

// The stages for the B of pairs differ from the others only in the objects that serve one user at a
// time.
StageOptions RankState::PairOptionsOf(const layout::StageLayout& stage) const {
  return {.model = *options.model,
          .layout = stage,
          .parameters = *parameters,
          .backend = pair->backward,
          .scratch = pair->scratch,
          .rotary_table = rotary_table,
          .auxiliary_scale = AuxiliaryScale(),
          .meetings = pair->meetings.get(),
          .context = pair->context.get(),
          .experts = pair->experts.get(),
          .observer = options.observer};
}

absl::Status RankState::CreateStages() {
  for (const auto& [id, stage] : layout.stages) {
    stages.try_emplace(id, OptionsOf(stage));
    if (pair != nullptr) pair->stages.try_emplace(id, PairOptionsOf(stage));
    has_gradients[id] = false;
  }
  if (!layout.vocabulary.has_value()) return absl::OkStatus();
  ASSIGN_OR_RETURN(vocabulary,
                   SpreadState::Create(options, layout, *parameters,
                                       {.layers = scratch, .meetings = meeting_scratch}));
  return absl::OkStatus();
}

// Allocates what all stages share, and fills its tables.
absl::Status RankState::AllocateShared() {
  ASSIGN_OR_RETURN(shared, SectionMemory::Create(layout.shared, *compute));
  for (const layout::Tensor& tensor : layout.shared.tensors) {
    if (tensor.role == layout::Role::kLayerScratch) scratch = shared.At(tensor);
    if (tensor.role == layout::Role::kPairScratch && pair != nullptr)
      pair->scratch = shared.At(tensor);
    if (tensor.role == layout::Role::kMeetingScratch) meeting_scratch = shared.At(tensor);
    if (tensor.role == layout::Role::kRotaryTable) rotary_table = shared.FloatsAt(tensor);
    if (tensor.role == layout::Role::kRowNumbers)
      row_numbers = reinterpret_cast<std::int32_t*>(shared.At(tensor));
  }
  if (options.shapes_only) return absl::OkStatus();
  const auto fill = [this](const auto& values, auto* table) -> absl::Status {
    if (table == nullptr) return absl::OkStatus();
    RETURN_IF_ERROR(compute->CopyFromHost(std::as_bytes(std::span(values)),
                                          reinterpret_cast<std::byte*>(table)));
    return compute->Synchronize();
  };
  std::vector<std::int32_t> numbers(
      static_cast<std::size_t>(model::MostRowsOfSource(*options.model)));
  std::iota(numbers.begin(), numbers.end(), 0);
  RETURN_IF_ERROR(fill(numbers, row_numbers));
  if (rotary_table == nullptr) return absl::OkStatus();
  return fill(model::RotaryTable(options.model->config), rotary_table);
}

}  // namespace takt::train
