// SPDX-License-Identifier: Apache-2.0
#include "common/layout/slot_layout.h"

#include <cstddef>
#include <utility>
#include <vector>

#include "common/layout/regions.h"
#include "common/layout/token_block.h"
#include "common/program/slot_bytes.h"

namespace takt::layout {
namespace {

using program::SlotKind;

bool IsReadByWeightGrad(SlotKind kind) {
  return kind == SlotKind::kStash || kind == SlotKind::kRecomputed || kind == SlotKind::kOutputGrad;
}

class SlotSizes {
 public:
  SlotSizes(const model::Model& model, const StageLayouts& stages, const program::Program& program,
            const VocabularyLayout* vocabulary)
      : stages_(stages),
        vocabulary_(vocabulary),
        emulated_(model.config.family == model::Family::kEmulated),
        message_bytes_(model.layers.front().cost.output_bytes),
        token_bytes_(TokenBlockOf(model, program).bytes()) {}

  std::int64_t BytesOf(const program::Slot& slot) const {
    if (vocabulary_ != nullptr && slot.kind == SlotKind::kVocabularyStash)
      return vocabulary_->stash_bytes();
    if (vocabulary_ != nullptr && slot.kind == SlotKind::kPartialGrad)
      return vocabulary_->partial_grad_bytes();
    const MemoryKind kind = program::MemoryKindOf(slot.kind);
    if (kind == MemoryKind::kMessages) return message_bytes_;
    if (emulated_) return 0;
    if (kind == MemoryKind::kTokens) return token_bytes_;
    const auto stage = stages_.find(slot.stage);
    if (kind != MemoryKind::kStash || stage == stages_.end()) return 0;
    return slot.kind == SlotKind::kStash ? stage->second.stash_bytes
                                         : stage->second.recomputed_bytes;
  }

 private:
  const StageLayouts& stages_;
  const VocabularyLayout* const vocabulary_;
  const bool emulated_;
  const std::int64_t message_bytes_;  // every layer but the head passes on as much
  const std::int64_t token_bytes_;
};

// Returns the parts of a stage's layers, or nothing where all of them only compute.
std::vector<model::LayerParts> PartsOf(const model::Model& model, const mesh::Stage& stage) {
  std::vector<model::LayerParts> layers;
  bool any = false;
  for (LayerId layer = stage.first_layer; layer < stage.last_layer; ++layer) {
    const model::LayerParts& parts = model.layers[layer.value()].parts;
    model::LayerParts& added = layers.emplace_back(parts);
    if (stage.recompute == model::Recompute::kSelective) added.input_grad = parts.selective;
    if (stage.recompute == model::Recompute::kFull) added.input_grad = parts.full;
    if (stage.recompute != model::Recompute::kNone) {
      added.input_grad.insert(added.input_grad.end(), parts.input_grad.begin(),
                              parts.input_grad.end());
    }
    any |= !added.forward.empty() || !added.input_grad.empty() || !added.weight_grad.empty() ||
           added.norm_bytes > 0;
  }
  if (!any) layers.clear();
  return layers;
}

}  // namespace

program::StageShape ShapeOf(const model::Model& model, const mesh::Stage& stage,
                            HeadLogits logits) {
  const StageLayout layout = LayOutStage(model, stage, logits);
  return {.first_layer = stage.first_layer,
          .last_layer = stage.last_layer,
          .output_bytes = model.layers[stage.last_layer.value() - 1].cost.output_bytes,
          .stash_bytes = layout.stash_bytes,
          .recomputed_bytes = layout.recomputed_bytes,
          .layers = PartsOf(model, stage)};
}

void SizeHeadStash(const model::Model& model, const mesh::Partition& partition,
                   std::vector<program::Program>& programs) {
  const mesh::Stage& last = partition.back();
  for (program::Program& program : programs) {
    const StageLayout layout = LayOutStage(model, last, HeadLogitsOf(model, program));
    for (program::Slot& slot : program.slots) {
      if (slot.stage != last.id) continue;
      if (slot.kind == SlotKind::kStash) slot.bytes = layout.stash_bytes;
      if (slot.kind == SlotKind::kRecomputed) slot.bytes = layout.recomputed_bytes;
    }
  }
}

Section LayOutSlots(const model::Model& model, const StageLayouts& stages,
                    const program::Program& program, const VocabularyLayout* vocabulary) {
  const bool shares = program::MergesWeightGrads(program);
  const SlotSizes sizes(model, stages, program, vocabulary);
  Section section{.name = "slots"};
  std::map<std::pair<SlotKind, StageId>, int> shared;  // the indices of allocations
  for (std::size_t i = 0; i < program.slots.size(); ++i) {
    const program::Slot& slot = program.slots[i];
    Tensor tensor{.role = Role::kSlot,
                  .stage = slot.stage,
                  .slot = SlotId(static_cast<std::int32_t>(i)),
                  .slot_kind = slot.kind,
                  .bytes = sizes.BytesOf(slot)};
    if (tensor.bytes == 0) continue;
    const MemoryKind kind = program::MemoryKindOf(slot.kind);
    // Slots that are no whole lines would not all be aligned in a shared allocation.
    if (!shares || !IsReadByWeightGrad(slot.kind) || tensor.bytes % kLineBytes != 0) {
      section.AddAlone(kind, tensor);
      continue;
    }
    const auto [entry, is_new] = shared.try_emplace({slot.kind, slot.stage});
    if (is_new) entry->second = section.Allocate(kind, 0);
    Allocation& allocation = section.allocations[static_cast<std::size_t>(entry->second)];
    tensor.allocation = entry->second;
    tensor.interleave.index = allocation.bytes / tensor.bytes;
    allocation.bytes += tensor.bytes;
    section.tensors.push_back(tensor);
  }
  for (Tensor& tensor : section.tensors) {
    const Allocation& allocation = section.allocations[static_cast<std::size_t>(tensor.allocation)];
    tensor.interleave.count = allocation.bytes / tensor.bytes;
  }
  return section;
}

std::vector<Tensor> TensorsInSlot(const model::Model& model, const StageLayout& stage,
                                  const Tensor& slot) {
  const bool kept = slot.slot_kind == program::SlotKind::kStash;
  std::vector<Tensor> tensors;
  const auto add = [&](LayerId layer, std::string_view part, std::int64_t offset, std::int64_t room,
                       std::int64_t bytes) {
    Tensor& tensor = tensors.emplace_back(slot);
    tensor.layer = layer;
    tensor.part = part;
    tensor.offset += slot.interleave.At(offset, room);
    tensor.bytes = bytes;
    tensor.interleave = {};
  };
  for (const StageLayout::LayerPlace& place : stage.layers) {
    const std::vector<model::StashTensor>& stash = model.layers[place.layer.value()].stash;
    for (std::size_t i = 0; i < place.stash.size(); ++i) {
      const StashLayout::Place& at = place.stash[i];
      if (at.kept != kept || at.room == 0) continue;
      const std::int64_t begin = kept ? place.kept : place.recomputed;
      add(place.layer, stash[i].name, begin + at.offset, at.room, stash[i].bytes);
    }
    if (kept && place.output_room > 0)
      add(place.layer, "output", place.output, place.output_room, place.output_bytes);
  }
  return tensors;
}

}  // namespace takt::layout
