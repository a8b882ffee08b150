// SPDX-License-Identifier: Apache-2.0
#include "common/sim/weight_flow.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "absl/strings/str_cat.h"

namespace takt::sim {

using program::Instruction;
using program::Op;
using program::SlotKind;

WeightFlow::WeightFlow(const program::Program& program)
    : program_(program), frees_(program::FreesWeights(program)) {}

std::string WeightFlow::Step(const Instruction& instruction, SlotContents& contents) const {
  if (instruction.op == Op::kUnshard) return Unshard(instruction, contents);
  if (instruction.op == Op::kReshard) return Reshard(instruction, contents);
  Content weights = contents.At(instruction.reads[0]);
  if (weights.what != What::kShards) return "finds no shards of new weights";
  weights.what = What::kWeights;
  contents.Set(instruction.writes[0], weights);
  return "";
}

std::string WeightFlow::Unshard(const Instruction& unshard, SlotContents& contents) const {
  if (unshard.reads != SlotsOf(SlotKind::kShard, unshard.stage) ||
      unshard.writes != SlotsOf(SlotKind::kWeights, unshard.stage)) {
    return "does not touch every layer of its stage once, in order";
  }
  for (std::size_t i = 0; i < unshard.writes.size(); ++i) {
    if (contents.At(unshard.writes[i]).what != What::kNothing) return "finds whole weights";
    Content weights = contents.At(unshard.reads[i]);
    weights.what = What::kWeights;
    contents.Set(unshard.writes[i], weights);
  }
  return "";
}

std::string WeightFlow::Reshard(const Instruction& reshard, SlotContents& contents) const {
  if (reshard.writes != SlotsOf(SlotKind::kWeights, reshard.stage))
    return "does not free every layer of its stage once, in order";
  for (const SlotId slot : reshard.writes) {
    if (contents.At(slot).what != What::kWeights) return "finds no whole weights";
    contents.Set(slot, {});
  }
  return "";
}

std::string WeightFlow::CheckUpdate(const Instruction& optimizer,
                                    const SlotContents& contents) const {
  if (!frees_) return "";
  if (optimizer.writes != SlotsOf(SlotKind::kShard))
    return "does not update every layer and version once, in order";
  for (const SlotId slot : SlotsOf(SlotKind::kWeights)) {
    if (contents.At(slot).what == What::kNothing) continue;
    return absl::StrCat("comes before RESHARD of stage ",
                        program_.slots[slot.value()].stage.value(),
                        ", whose weights would stay those of this step");
  }
  return "";
}

std::vector<SlotId> WeightFlow::SlotsOf(SlotKind kind) const {
  std::vector<SlotId> slots;
  for (std::size_t i = 0; i < program_.slots.size(); ++i) {
    if (program_.slots[i].kind == kind) slots.push_back(SlotId(static_cast<std::int32_t>(i)));
  }
  std::ranges::stable_sort(slots, {},
                           [this](SlotId id) { return program_.slots[id.value()].stage; });
  return slots;
}

std::vector<SlotId> WeightFlow::SlotsOf(SlotKind kind, StageId stage) const {
  std::vector<SlotId> slots = SlotsOf(kind);
  std::erase_if(slots, [&](SlotId id) { return program_.slots[id.value()].stage != stage; });
  return slots;
}

}  // namespace takt::sim
