// SPDX-License-Identifier: Apache-2.0
#include "common/layout/rank_layout.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "common/base/status.h"
#include "common/layout/gpu_scratch.h"
#include "common/layout/parameter_layout.h"
#include "common/model/llama.h"
#include "common/model/muon.h"
#include "common/model/shared_mixture.h"
#include "common/model/split_layers.h"
#include "common/program/split_pairs.h"

namespace takt::layout {
namespace {

constexpr std::int64_t kFloatBytes = 4;

// The bytes of a takt-worker that holds no job, as measured (docs/memory.md), and those that
// threads, kernels and channels of a job add.
constexpr std::int64_t kProcessBytes = std::int64_t{44} << 20;

bool Spreads(const RankInputs& inputs) { return !inputs.vocabulary_ends.empty(); }

StageLayouts LayOutStages(const RankInputs& inputs) {
  StageLayouts stages;
  const HeadLogits logits = HeadLogitsOf(inputs.model, inputs.program);
  const std::set<StageId> held = program::HeldStages(inputs.program);
  for (const mesh::Stage& stage : inputs.partition) {
    if (held.contains(stage.id)) stages.emplace(stage.id, LayOutStage(inputs.model, stage, logits));
  }
  return stages;
}

std::optional<VocabularyLayout> LayOutVocabularyOf(const RankInputs& inputs) {
  if (!Spreads(inputs)) return std::nullopt;
  const PpRank rank = inputs.program.pp_rank;
  return LayOutVocabulary(inputs.model, inputs.vocabulary_ends, rank,
                          /*root=*/inputs.partition.back().pp_rank == rank);
}

// Returns the layers in ascending order.
std::vector<LayerId> LayersOf(const StageLayouts& stages) {
  std::vector<LayerId> layers;
  for (const auto& [id, stage] : stages) {
    for (const StageLayout::LayerPlace& place : stage.layers) layers.push_back(place.layer);
  }
  return layers;
}

// Returns what Muon's update of the largest matrix takes. Updates have the scratch of layers, which
// pass nothing on in it.
std::int64_t MuonScratchBytes(const model::Model& model, const StageLayouts& stages) {
  std::int64_t floats = 0;
  for (const LayerId layer : LayersOf(stages)) {
    for (const model::Parameter& parameter : model.layers[layer.value()].parameters) {
      if (!parameter.by_muon) continue;
      floats = std::max(floats, model::MuonScratchFloats(parameter.shape[0], parameter.shape[1]));
    }
  }
  return kFloatBytes * floats;
}

std::map<StageId, std::vector<LayerId>> LayersByStage(const StageLayouts& stages) {
  std::map<StageId, std::vector<LayerId>> layers;
  for (const auto& [id, stage] : stages) {
    for (const StageLayout::LayerPlace& place : stage.layers) layers[id].push_back(place.layer);
  }
  return layers;
}

Section LayOutShared(const model::Model& model, const StageLayouts& stages,
                     const std::optional<VocabularyLayout>& vocabulary, bool pairs_meet) {
  Section section{.name = "shared"};
  if (const std::int64_t elements = model::RotaryTableElements(model.config); elements > 0) {
    section.AddAlone(MemoryKind::kScratch,
                     {.role = Role::kRotaryTable, .bytes = kFloatBytes * elements});
  }
  if (const std::int64_t rows = model::MostRowsOfSource(model); rows > 0) {
    section.AddAlone(MemoryKind::kScratch,
                     {.role = Role::kRowNumbers,
                      .bytes = static_cast<std::int64_t>(sizeof(std::int32_t)) * rows});
  }
  std::int64_t scratch = MuonScratchBytes(model, stages);
  for (const auto& [id, stage] : stages) scratch = std::max(scratch, stage.scratch_bytes);
  if (vocabulary.has_value())
    scratch = std::max(scratch, vocabulary->scratch_sums * vocabulary->sum_bytes);
  section.AddAlone(MemoryKind::kScratch, {.role = Role::kLayerScratch, .bytes = scratch});
  if (pairs_meet) {
    std::int64_t of_pair = 0;
    for (const auto& [id, stage] : stages) of_pair = std::max(of_pair, stage.scratch_bytes);
    section.AddAlone(MemoryKind::kScratch, {.role = Role::kPairScratch, .bytes = of_pair});
  }
  if (vocabulary.has_value()) {
    section.AddAlone(
        MemoryKind::kScratch,
        {.role = Role::kMeetingScratch, .bytes = vocabulary->meeting_sums * vocabulary->sum_bytes});
  }
  return section;
}

// Returns what joining one moment of this rank's rows takes, by replica. Where replicas share the
// optimizer's state, they do that for the rank that writes the whole table.
std::vector<std::int64_t> JoinedBytes(const RankInputs& inputs) {
  std::vector<std::int64_t> by_replica(static_cast<std::size_t>(inputs.num_replicas));
  if (!Spreads(inputs) || !program::ShardsOptimizer(inputs.program)) return by_replica;
  const PpRank rank = inputs.program.pp_rank;
  const std::int64_t words =
      mesh::WordsOf(inputs.vocabulary_ends, rank, inputs.model.config.vocab).words;
  for (const mesh::Stage& stage : inputs.partition) {
    for (LayerId id = stage.first_layer; id < stage.last_layer; ++id) {
      for (const model::Parameter& parameter : inputs.model.layers[id.value()].parameters) {
        if (!parameter.by_word || parameter.moments == 0 || stage.pp_rank == rank) continue;
        const auto writer = static_cast<std::size_t>(WriterOf(id, inputs.num_replicas));
        std::int64_t& bytes = by_replica[writer];
        bytes = std::max(bytes, kFloatBytes * words * parameter.shape[1]);
      }
    }
  }
  return by_replica;
}

// A rank that writes a layer takes what other ranks have of it: rows of a table that is spread, and
// pieces of what is split, tensor by tensor.
Section LayOutSnapshot(const RankInputs& inputs) {
  const int tp_size = inputs.model.tensor.size;
  std::vector<std::int64_t> by_writer = JoinedBytes(inputs);
  by_writer.resize(static_cast<std::size_t>(inputs.num_replicas * tp_size));
  std::vector<std::int64_t> received(by_writer.size());
  for (const mesh::Stage& stage : inputs.partition) {
    if (stage.pp_rank != inputs.program.pp_rank) continue;
    for (LayerId id = stage.first_layer; id < stage.last_layer; ++id) {
      const auto writer =
          static_cast<std::size_t>(WriterOf(id, inputs.num_replicas) * tp_size +
                                   WriterAmongSplit(id, inputs.num_replicas, tp_size).value());
      for (const model::Parameter& parameter : inputs.model.layers[id.value()].parameters) {
        const std::int64_t bytes = kFloatBytes * model::WholeElements(parameter);
        by_writer[writer] += parameter.state_parts() * bytes;
        if (tp_size > 1) received[writer] = std::max(received[writer], bytes);
      }
    }
  }
  for (std::size_t i = 0; i < by_writer.size(); ++i) by_writer[i] += received[i];
  Section section{.name = "snapshot"};
  section.AddAlone(MemoryKind::kSnapshot,
                   {.role = Role::kSnapshot, .bytes = *std::ranges::max_element(by_writer)});
  return section;
}

int MicrobatchesOfW(const program::Program& program) {
  int most = 1;
  for (const program::Instruction& instruction : program.body) {
    if (instruction.op == program::Op::kWeightGrad)
      most = std::max(most, instruction.num_microbatches);
  }
  return most;
}

}  // namespace

ShardPlace ShardPlaceOf(const program::Program& program, int replica, int num_replicas) {
  if (!program::ShardsOptimizer(program)) return {};
  const int copies = program.mirror.value() < 0 ? 1 : 2;
  const int copy = copies == 2 && program.pp_rank > program.mirror ? 1 : 0;
  return {.index = replica < 0 ? -1 : copies * replica + copy, .count = copies * num_replicas};
}

RankLayout LayOutRank(const RankInputs& inputs) {
  TAKT_CHECK(program::SpreadsVocabulary(inputs.program) == Spreads(inputs));
  const model::Model& model = inputs.model;
  RankLayout layout{
      .model = &model, .stages = LayOutStages(inputs), .vocabulary = LayOutVocabularyOf(inputs)};
  const VocabularyLayout* const vocabulary = layout.vocabulary ? &*layout.vocabulary : nullptr;
  layout.slots = LayOutSlots(model, layout.stages, inputs.program, vocabulary);
  if (inputs.validation != nullptr) {
    layout.validation_slots = LayOutSlots(model, layout.stages, *inputs.validation, vocabulary);
    layout.validation_slots.name = "validation slots";
  }
  layout.process.name = "process";
  layout.process.AddAlone(MemoryKind::kProcess, {.role = Role::kProcess, .bytes = kProcessBytes});
  if (const std::int64_t sharing = model::SharingBytes(model); sharing > 0) {
    layout.process.AddAlone(MemoryKind::kProcess, {.role = Role::kSharing, .bytes = sharing});
  }
  const bool foresees = program::OverlapsSteps(inputs.program);
  const ShardPlace place = ShardPlaceOf(inputs.program, inputs.replica, inputs.num_replicas);
  layout.parameters = LayOutParameters(model, LayersOf(layout.stages),
                                       {.num_versions = program::NumWeightVersions(inputs.program),
                                        .spread = Spreads(inputs),
                                        .place = place,
                                        .frees = program::FreesWeights(inputs.program),
                                        .foresees = foresees,
                                        .leaves = inputs.leaves});
  if (program::FreesWeights(inputs.program)) {
    layout.whole = LayOutWholeWeights(model, LayersByStage(layout.stages),
                                      program::MostUnsharded(inputs.program));
  }
  if (model.config.family == model::Family::kEmulated) return layout;  // its passes compute nothing
  if (vocabulary != nullptr) layout.rows = LayOutRows(model, vocabulary->words, place, foresees);
  layout.shared =
      LayOutShared(model, layout.stages, layout.vocabulary, program::PairsMeet(inputs.program));
  if (inputs.device == config::DeviceKind::kCuda)
    layout.gpu = LayOutGpuScratch(model, MicrobatchesOfW(inputs.program));
  if (inputs.saves) layout.snapshot = LayOutSnapshot(inputs);
  if (inputs.copy_bytes > 0) {
    layout.copies.name = "copies";
    layout.copies.AddAlone(MemoryKind::kCopies,
                           {.role = Role::kCopies, .bytes = inputs.copy_bytes});
  }
  return layout;
}

MemoryBytes RankLayout::bytes() const {
  MemoryBytes sum;
  for (const Section* const section : sections()) {
    for (const Allocation& each : section->allocations)
      sum[each.kind] += AllocatedBytes(each.bytes);
  }
  return sum;
}

}  // namespace takt::layout
