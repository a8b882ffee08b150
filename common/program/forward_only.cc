// SPDX-License-Identifier: Apache-2.0
#include "common/program/forward_only.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <map>
#include <utility>
#include <vector>

#include "common/program/split_pairs.h"

namespace takt::program {
namespace {

SlotId ScalarsOf(const Instruction& instruction, const Program& program) {
  return FindSlot(program, instruction.writes, SlotKind::kScalars, StageId(-1));
}

// The loss of a microbatch, from the parts of all blocks.
Instruction LossOf(const Instruction& backward, const Program& program) {
  const SlotId scalars = ScalarsOf(backward, program);
  return {.op = Op::kLoss,
          .lane = backward.lane,
          .stage = backward.stage,
          .microbatch = backward.microbatch,
          .reads = {FindSlot(program, backward.reads, SlotKind::kTokens, StageId(-1)),
                    FindSlot(program, backward.reads, SlotKind::kVocabularyStash, backward.stage),
                    scalars},
          .writes = {scalars}};
}

// Returns whether instruction `index` of the body, an UNSHARD or a RESHARD, is of weights that an F
// reads: one between the UNSHARD and the RESHARD that belong together.
bool IsOfForward(const Program& program, std::size_t index) {
  const std::vector<Instruction>& body = program.body;
  const StageId stage = body[index].stage;
  const bool begins = body[index].op == Op::kUnshard;
  const Op other_end = begins ? Op::kReshard : Op::kUnshard;
  const std::ptrdiff_t step = begins ? 1 : -1;
  for (auto i = static_cast<std::ptrdiff_t>(index) + step; i >= 0 && i < std::ssize(body);
       i += step) {
    const Instruction& each = body[static_cast<std::size_t>(i)];
    if (each.stage != stage) continue;
    if (each.op == other_end) return false;
    if (each.op == Op::kForward || each.op == Op::kOverlap) return true;
  }
  return false;
}

// Returns whether instruction `index` of the body is in the program that only goes forward.
bool Remains(const Program& program, std::size_t index) {
  const Instruction& instruction = program.body[index];
  switch (instruction.op) {
    case Op::kLoad:
    case Op::kForward:
    case Op::kOverlap:
    case Op::kNormExchange:
    case Op::kRows:
    case Op::kShare:
    case Op::kVocabularyForward:
    case Op::kGather:
      return true;
    case Op::kUnshard:
    case Op::kReshard:
      return IsOfForward(program, index);
    case Op::kVocabularyBackward:  // the root's becomes LOSS
      return ScalarsOf(instruction, program).value() >= 0;
    case Op::kSend:
    case Op::kRecv:
      return program.lanes[instruction.lane.value()].direction == Direction::kActivation;
    default:
      return false;
  }
}

// Numbers slots and lanes anew, in the order of their first use, and leaves out those without one.
class Rebuild {
 public:
  explicit Rebuild(const Program& from) : from_(from) {
    to_ = {.pp_rank = from.pp_rank,
           .pp_size = from.pp_size,
           .num_stages = from.num_stages,
           .num_microbatches = from.num_microbatches,
           .mirror = from.mirror,
           .schedule = from.schedule};
    std::ranges::copy_if(from.part_lists, std::back_inserter(to_.part_lists),
                         [](const PartList& list) { return list.op == Op::kForward; });
  }

  void Add(const Instruction& instruction) {
    Instruction added = instruction;
    if (instruction.op == Op::kOverlap) added = HalvesOf(instruction, from_).forward;
    if (instruction.op == Op::kVocabularyBackward) added = LossOf(instruction, from_);
    if (added.op == Op::kNormExchange) added.op = Op::kEval;
    added.lane = Lane(added.lane);
    for (SlotId& slot : added.reads) slot = Slot(slot);
    for (SlotId& slot : added.writes) slot = Slot(slot);
    to_.body.push_back(std::move(added));
  }

  Program Take() { return std::move(to_); }

 private:
  LaneId Lane(LaneId id) {
    const auto [entry, is_new] =
        lanes_.try_emplace(id, static_cast<std::int32_t>(to_.lanes.size()));
    if (is_new) to_.lanes.push_back(from_.lanes[id.value()]);
    return entry->second;
  }

  SlotId Slot(SlotId id) {
    const program::Slot& slot = from_.slots[id.value()];
    const SlotId key =
        slot.kind == SlotKind::kStash ? stashes_.try_emplace(slot.stage, id).first->second : id;
    const auto [entry, is_new] =
        slots_.try_emplace(key, static_cast<std::int32_t>(to_.slots.size()));
    if (is_new) to_.slots.push_back(from_.slots[key.value()]);
    return entry->second;
  }

  const Program& from_;
  Program to_;
  std::map<LaneId, LaneId> lanes_;
  std::map<SlotId, SlotId> slots_;
  std::map<StageId, SlotId> stashes_;  // the one that serves all microbatches of a stage
};

}  // namespace

std::vector<Program> ForwardOnly(const std::vector<Program>& programs) {
  std::vector<Program> result;
  for (const Program& program : programs) {
    Rebuild rebuild(program);
    for (std::size_t i = 0; i < program.body.size(); ++i) {
      if (Remains(program, i)) rebuild.Add(program.body[i]);
    }
    result.push_back(rebuild.Take());
  }
  return result;
}

}  // namespace takt::program
