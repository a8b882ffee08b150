// SPDX-License-Identifier: Apache-2.0
// Prints the layout of a rank as a table for people.
#include <array>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/layout/rank_layout.h"

namespace takt::layout {
namespace {

std::string_view Name(program::SlotKind kind) {
  constexpr std::array<std::string_view, 16> kNames = {
      "",
      "tokens",
      "input",
      "output",
      "stash",
      "output gradient",
      "input gradient",
      "gradient",
      "weights",
      "scalars",
      "recomputed stash",
      "output of the final norm",
      "stash of the vocabulary",
      "sums of the gradient of the final norm's output",
      "gradient of the final norm's output",
      "shard of weights"};
  return kNames[static_cast<std::size_t>(kind)];
}

// What belongs to the vocabulary has the number of a stage that does not exist.
bool IsOfAStage(const Tensor& slot) {
  return slot.stage.value() >= 0 && slot.slot_kind < program::SlotKind::kHeadInput;
}

std::string Describe(const Tensor& tensor) {
  std::string text(Name(tensor.role));
  if (tensor.role == Role::kSlot) {
    absl::StrAppend(&text, " ", tensor.slot.value(), ": ", std::string(Name(tensor.slot_kind)));
    if (IsOfAStage(tensor)) absl::StrAppend(&text, " of stage ", tensor.stage.value());
    if (tensor.interleave.count > 1) {
      absl::StrAppend(&text, ", room ", tensor.interleave.index, " of ", tensor.interleave.count,
                      ", tensor by tensor");
    }
  }
  if (tensor.parameter != nullptr) absl::StrAppend(&text, " of ", tensor.parameter->name);
  if (tensor.rows > 0) {
    absl::StrAppend(&text, ", rows ", tensor.first_row, " to ", tensor.first_row + tensor.rows - 1);
  }
  if (tensor.layer.value() >= 0) absl::StrAppend(&text, ", layer ", tensor.layer.value());
  if (tensor.version > 0) absl::StrAppend(&text, ", version ", tensor.version);
  if (tensor.version == program::kForeseen) absl::StrAppend(&text, ", foreseen");
  return text;
}

void AddRow(std::string& text, std::int64_t offset, std::int64_t bytes, std::string_view what) {
  absl::StrAppendFormat(&text, "  %12d %12d  %s\n", offset, bytes, std::string(what));
}

void AddSection(std::string& text, const Section& section) {
  std::size_t next = 0;
  std::vector<std::vector<const Tensor*>> tensors(section.allocations.size());
  for (const Tensor& tensor : section.tensors)
    tensors[static_cast<std::size_t>(tensor.allocation)].push_back(&tensor);
  for (const Allocation& allocation : section.allocations) {
    absl::StrAppendFormat(&text, "%s, allocation %d: %s, %d bytes\n", std::string(section.name),
                          next, std::string(Name(allocation.kind)), allocation.bytes);
    for (const Tensor* const tensor : tensors[next++])
      AddRow(text, tensor->offset, tensor->bytes, Describe(*tensor));
  }
}

// Adds the contents of each slot of this kind of the stage.
void AddSlotContents(std::string& text, const model::Model& model, const StageLayout& stage,
                     const Tensor& slot) {
  if (slot.bytes == 0) return;
  absl::StrAppend(&text, "each slot of stage ", slot.stage.value(), "'s ",
                  std::string(Name(slot.slot_kind)), ": ", slot.bytes, " bytes\n");
  for (const Tensor& tensor : TensorsInSlot(model, stage, slot)) {
    AddRow(text, tensor.offset, tensor.bytes,
           absl::StrCat("layer ", tensor.layer.value(), ", ", std::string(tensor.part)));
  }
}

void AddVocabularyStash(std::string& text, const VocabularyLayout& vocabulary) {
  const Tensor slot{.slot_kind = program::SlotKind::kVocabularyStash,
                    .bytes = vocabulary.stash_bytes()};
  absl::StrAppend(&text, "each slot of the vocabulary's stash: ", slot.bytes, " bytes\n");
  for (const Tensor& tensor : TensorsInSlot(vocabulary, slot))
    AddRow(text, tensor.offset, tensor.bytes, tensor.part);
}

}  // namespace

std::string_view Name(Role role) {
  constexpr std::array<std::string_view, kNumRoles> kNames = {"gradient",
                                                              "weight",
                                                              "packed weight",
                                                              "packed transposed weight",
                                                              "first moment",
                                                              "second moment",
                                                              "rotary table",
                                                              "scratch of a layer's pass",
                                                              "slot",
                                                              "workspace of products",
                                                              "rounded gradient for I",
                                                              "rounded gradients for W",
                                                              "gradients of attention's scores",
                                                              "copy of weights and moments",
                                                              "process",
                                                              "scratch of a meeting",
                                                              "copies of weights and moments",
                                                              "shard of a weight",
                                                              "scratch of the B of a pair",
                                                              "sharing of experts",
                                                              "gradients of a leaf",
                                                              "weights to pack",
                                                              "last update",
                                                              "numbers of rows"};
  return kNames[static_cast<std::size_t>(role)];
}

std::string ToString(const RankLayout& layout) {
  std::string text = absl::StrCat(takt::ToString(layout.bytes()), "\n");
  for (const Section* const section : layout.sections()) AddSection(text, *section);
  if (layout.parameters.tensors.empty() && !layout.vocabulary.has_value()) return text;
  for (const auto& [id, stage] : layout.stages) {
    Tensor slot{.stage = id, .slot_kind = program::SlotKind::kStash, .bytes = stage.stash_bytes};
    AddSlotContents(text, *layout.model, stage, slot);
    slot.slot_kind = program::SlotKind::kRecomputed;
    slot.bytes = stage.recomputed_bytes;
    AddSlotContents(text, *layout.model, stage, slot);
  }
  if (layout.vocabulary.has_value()) AddVocabularyStash(text, *layout.vocabulary);
  return text;
}

}  // namespace takt::layout
