// SPDX-License-Identifier: Apache-2.0
#include "common/program/program.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "common/program/remove_barrier.h"

namespace takt::program {
namespace {

// Returns whether an op that concerns the whole step in a program with a flush concerns one
// microbatch.
bool AnyIsOfAMicrobatch(const Program& program, Op op) {
  return std::any_of(program.body.begin(), program.body.end(), [op](const Instruction& each) {
    return each.op == op && each.microbatch.value() >= 0;
  });
}

}  // namespace

std::string_view Name(Op op) {
  constexpr std::string_view kNames[] = {"",
                                         "LOAD",
                                         "F",
                                         "I",
                                         "W",
                                         "B",
                                         "SEND",
                                         "RECV",
                                         "REDUCE_GRAD",
                                         "REDUCE_TIED",
                                         "NORM_PARTIAL",
                                         "NORM_EXCHANGE",
                                         "UNKNOWN",
                                         "OPT",
                                         "SNAPSHOT",
                                         "EVAL",
                                         "UNKNOWN",
                                         "O",
                                         "ROWS",
                                         "SHARE",
                                         "GATHER",
                                         "RETURN",
                                         "ROWS_GRAD",
                                         "S",
                                         "T",
                                         "LOSS",
                                         "GATHER_WEIGHTS",
                                         "UNSHARD",
                                         "RESHARD",
                                         "SPECULATE"};
  const auto number = static_cast<std::size_t>(op);
  return number > 0 && number < std::size(kNames) ? kNames[number] : "UNKNOWN";
}

std::string ToString(const Instruction& instruction, const Program& program) {
  const std::string name(Name(instruction.op));
  const int stage = instruction.stage.value();
  const int microbatch = instruction.microbatch.value();
  switch (instruction.op) {
    case Op::kForward:
    case Op::kInputGrad:
    case Op::kBackward:
    case Op::kVocabularyForward:
    case Op::kVocabularyBackward:
      return absl::StrCat(stage, name, microbatch);
    case Op::kRows:
    case Op::kShare:
    case Op::kGather:
    case Op::kReturn:
    case Op::kRowsGrad:
    case Op::kLoss:
      return absl::StrCat(name, "(", microbatch, ")");
    case Op::kWeightGrad: {
      const int last = microbatch + instruction.num_microbatches - 1;
      return absl::StrCat(stage, name, microbatch,
                          last == microbatch ? "" : absl::StrCat("-", last));
    }
    case Op::kOverlap:
      return absl::StrCat("(", stage, "F", microbatch, ";", instruction.backward_stage.value(), "B",
                          instruction.backward_microbatch.value(), ")");
    case Op::kSend:
    case Op::kRecv: {
      const Lane& lane = program.lanes[instruction.lane.value()];
      return absl::StrCat(stage, name, "_", DirectionName(lane.direction), microbatch);
    }
    case Op::kReduceGrad:
    case Op::kGatherWeights:
      return absl::StrCat(name, stage == program.num_stages ? "(rows " : "(",
                          instruction.layer.value(), ")");
    case Op::kUnshard:
    case Op::kReshard:
      return absl::StrCat(name, "(stage ", stage, ")");
    case Op::kSpeculate:
      return absl::StrCat(name, ForeseesRows(instruction) ? "(rows)" : "");
    default:
      return name;
  }
}

const char* DirectionName(Direction direction) {
  return direction == Direction::kGradient ? "B" : "F";
}

std::string LaneName(const Lane& lane) {
  switch (lane.kind) {
    case LaneKind::kCompute:
      return "compute";
    case LaneKind::kLoad:
      return "load";
    case LaneKind::kReduce:
      return "reduce";
    case LaneKind::kSend:
      return absl::StrCat("send ", DirectionName(lane.direction), " to ", lane.peer.value());
    case LaneKind::kRecv:
      return absl::StrCat("recv ", DirectionName(lane.direction), " from ", lane.peer.value());
    case LaneKind::kVocabulary:
      return "vocabulary";
  }
  return "?";
}

SlotId FindSlot(const Program& program, std::span<const SlotId> slots, SlotKind kind, StageId stage,
                std::int32_t index) {
  for (const SlotId id : slots) {
    const Slot& slot = program.slots[id.value()];
    if (slot.kind == kind && slot.stage == stage && (index < 0 || slot.index == index)) return id;
  }
  return SlotId(-1);
}

std::set<StageId> HeldStages(const Program& program) {
  std::set<StageId> stages;
  for (const Slot& slot : program.slots) {
    const bool of_stage = slot.stage.value() < program.num_stages;
    if (slot.kind == SlotKind::kWeights && of_stage) stages.insert(slot.stage);
  }
  return stages;
}

bool IsCompute(Op op) {
  return op == Op::kForward || op == Op::kInputGrad || op == Op::kWeightGrad ||
         op == Op::kBackward || op == Op::kOverlap || op == Op::kVocabularyForward ||
         op == Op::kVocabularyBackward || op == Op::kLoss;
}

bool IsMeeting(Op op) { return op >= Op::kRows && op <= Op::kRowsGrad; }

bool IsOfVocabulary(Op op) { return op >= Op::kRows && op <= Op::kLoss; }

bool SpreadsVocabulary(const Program& program) {
  return std::any_of(program.lanes.begin(), program.lanes.end(),
                     [](const Lane& lane) { return lane.kind == LaneKind::kVocabulary; });
}

bool FreesWeights(const Program& program) {
  return std::any_of(program.slots.begin(), program.slots.end(),
                     [](const Slot& slot) { return slot.kind == SlotKind::kShard; });
}

int MostUnsharded(const Program& program) {
  int now = 0, most = 0;
  for (const Instruction& instruction : program.body) {
    if (instruction.op == Op::kUnshard) most = std::max(most, ++now);
    if (instruction.op == Op::kReshard) --now;
  }
  return most;
}

bool ShardsOptimizer(const Program& program) {
  return FreesWeights(program) ||
         std::any_of(program.body.begin(), program.body.end(),
                     [](const Instruction& each) { return each.op == Op::kGatherWeights; });
}

bool OverlapsSteps(const Program& program) {
  return std::any_of(program.body.begin(), program.body.end(),
                     [](const Instruction& each) { return each.op == Op::kSpeculate; });
}

bool MergesWeightGrads(const Program& program) {
  return std::any_of(program.body.begin(), program.body.end(),
                     [](const Instruction& each) { return each.num_microbatches > 1; });
}

bool IsAsynchronous(const Program& program) {
  return NumWeightVersions(program) > 1 || UpdatesEachMicrobatch(program) ||
         AnyIsOfAMicrobatch(program, Op::kLoad);
}

bool UpdatesEachMicrobatch(const Program& program) {
  return AnyIsOfAMicrobatch(program, Op::kOptimizer);
}

int NumWeightVersions(const Program& program) {
  int oldest = 0;
  for (const Slot& slot : program.slots) oldest = std::max(oldest, slot.version);
  return oldest + 1;
}

bool IsPrimary(const Program& program, StageId stage) {
  return program.mirror.value() < 0 || stage.value() == program.pp_rank.value();
}

}  // namespace takt::program
