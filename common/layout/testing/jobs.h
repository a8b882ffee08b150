// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/layout/rank_layout.h"
#include "common/layout/regions.h"
#include "common/layout/vocabulary_layout.h"
#include "common/model/vocabulary.h"
#include "common/program/lowering.h"
#include "common/schedule/generate.h"
#include "common/schedule/spread_vocabulary.h"
#include "gtest/gtest.h"

namespace takt::layout {

inline model::ModelConfig Gpt2(int blocks) {
  return {.layers = blocks,
          .hidden = 20,
          .heads = 2,
          .kv_heads = 2,
          .inner = 40,
          .context = 9,
          .positions = 12,
          .vocab = 70};
}

inline model::ModelConfig Llama(model::Family family, int blocks) {
  return {.family = family,
          .layers = blocks,
          .hidden = 24,
          .heads = 4,
          .kv_heads = 2,
          .head_size = 6,
          .inner = 36,
          .context = 8,
          .positions = 8,
          .vocab = 70,
          .tied_head = family == model::Family::kQwen2};
}

inline constexpr std::int64_t kWords = 5 * model::kVocabularyBlock + 100;  // six blocks

inline model::ModelConfig WideVocabulary(model::Family family) {
  return {.family = family,
          .layers = 4,
          .hidden = 16,
          .heads = 2,
          .kv_heads = 2,
          .inner = 32,
          .context = 16,
          .positions = 16,
          .vocab = static_cast<int>(kWords),
          .tied_head = family != model::Family::kLlama};
}

struct Case {
  model::ModelConfig config;
  std::string schedule = "1f1b";
  int ranks = 2;
  int microbatches = 4;
  model::Recompute recompute = model::Recompute::kNone;
  model::Precisions precisions;
  bool merges = false;  // merges several W into one
  int replicas = 1;
  bool shards = false;        // the ranks that sum gradients share the optimizer's state
  mesh::VocabularyEnds ends;  // spreads the vocabulary
};

// A job as the planner would make it, with layers shared out evenly.
struct Job {
  model::Model model;
  mesh::Partition partition;
  std::vector<program::Program> programs;
  mesh::VocabularyEnds ends;
  int replicas = 1;

  explicit Job(const Case& c)
      : model(*model::BuildModel(c.config, 2, c.precisions)), ends(c.ends), replicas(c.replicas) {
    auto schedule =
        *schedule::Generate(c.schedule, {.num_ranks = c.ranks, .num_microbatches = c.microbatches});
    const bool spread = !ends.empty();
    if (spread) schedule = *schedule::SpreadVocabulary(schedule, {}, /*depth=*/2);
    const auto num_layers = static_cast<int>(model.layers.size());
    program::LowerOptions options{.reduce_gradients = c.replicas > 1,
                                  .merge_weight_grads = c.merges,
                                  .shard_optimizer = c.shards};
    for (StageId id(0); id.value() < schedule.num_stages; ++id) {
      partition.push_back(
          {.id = id,
           .pp_rank = schedule::RankOfStage(schedule.placement, c.ranks, id),
           .first_layer = LayerId(id.value() * num_layers / schedule.num_stages),
           .last_layer = LayerId((id.value() + 1) * num_layers / schedule.num_stages),
           .recompute = c.recompute});
      options.stages.push_back(
          ShapeOf(model, partition.back(), spread ? HeadLogits::kSpread : HeadLogits::kStashed));
    }
    if (spread) options.vocabulary = ShapeOfVocabulary(model, ends);
    options.tied_embeddings = !model.layers.back().tied_parameters.empty();
    programs = *program::Lower(schedule, options);
  }

  // replica: -1 for the one that has most.
  RankLayout LayoutOf(int rank, int replica = -1) const {
    return LayOutRank({.model = model,
                       .partition = partition,
                       .program = programs[rank],
                       .num_replicas = replicas,
                       .vocabulary_ends = ends,
                       .replica = replica});
  }
};

// Returns the tensors of a section, each in one piece: a slot with a stash as the tensors of its
// layers.
inline std::vector<Tensor> TensorsOf(const RankLayout& layout, const Section& section) {
  std::vector<Tensor> tensors;
  for (const Tensor& tensor : section.tensors) {
    const bool stash = tensor.slot_kind == program::SlotKind::kStash ||
                       tensor.slot_kind == program::SlotKind::kRecomputed;
    if (tensor.role == Role::kSlot && stash) {
      const StageLayout& stage = layout.stages.at(tensor.stage);
      for (const Tensor& part : TensorsInSlot(*layout.model, stage, tensor))
        tensors.push_back(part);
    } else if (tensor.slot_kind == program::SlotKind::kVocabularyStash) {
      for (const Tensor& part : TensorsInSlot(*layout.vocabulary, tensor)) tensors.push_back(part);
    } else {
      tensors.push_back(tensor);
      tensors.back().offset += tensor.interleave.At(0, tensor.bytes);
    }
  }
  return tensors;
}

inline void ExpectApartAndAligned(const RankLayout& layout, const Section& section) {
  std::map<int, std::vector<Tensor>> by_allocation;
  for (const Tensor& tensor : TensorsOf(layout, section)) {
    ASSERT_GE(tensor.allocation, 0);
    ASSERT_LT(tensor.allocation, std::ssize(section.allocations));
    by_allocation[tensor.allocation].push_back(tensor);
  }
  for (auto& [allocation, tensors] : by_allocation) {
    std::ranges::sort(tensors, {}, &Tensor::offset);
    std::int64_t end = 0;
    for (const Tensor& tensor : tensors) {
      EXPECT_EQ(tensor.offset % kLineBytes, 0) << section.name << " " << Name(tensor.role);
      EXPECT_GE(tensor.offset, end)
          << section.name << " " << Name(tensor.role) << " " << tensor.part;
      end = tensor.offset + tensor.bytes;
    }
    EXPECT_LE(end, section.allocations[static_cast<std::size_t>(allocation)].bytes)
        << section.name << " allocation " << allocation;
  }
}

inline void ExpectSound(const RankLayout& layout) {
  MemoryBytes sum;
  for (const Section* const section : layout.sections()) {
    ExpectApartAndAligned(layout, *section);
    for (const Allocation& each : section->allocations)
      sum[each.kind] += AllocatedBytes(each.bytes);
  }
  EXPECT_EQ(layout.bytes(), sum);
}

}  // namespace takt::layout
