// SPDX-License-Identifier: Apache-2.0
#include "worker/engine/lane.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/program/part_lists.h"

namespace takt::engine {

namespace {

using program::Instruction;
using program::LaneKind;
using program::Op;
using program::Program;

// Checks what the engine relies on while it runs. What slots mean is checked where an instruction
// is bound.
absl::Status CheckInstruction(const Program& program, const Instruction& instruction) {
  const int lane = instruction.lane.value();
  if (lane < 0 || lane >= static_cast<int>(program.lanes.size())) {
    return absl::InvalidArgumentError(absl::StrCat("program of pp rank ", program.pp_rank.value(),
                                                   ": an instruction names lane ", lane, " of ",
                                                   program.lanes.size()));
  }
  const auto invalid = [&](const char* why) {
    return absl::InvalidArgumentError(absl::StrCat("program of pp rank ", program.pp_rank.value(),
                                                   ": ", program::ToString(instruction, program),
                                                   " ", why));
  };
  for (const std::vector<SlotId>* slots : {&instruction.reads, &instruction.writes}) {
    for (const SlotId slot : *slots) {
      if (slot.value() < 0 || slot.value() >= static_cast<int>(program.slots.size())) {
        return invalid("names a slot that is not there");
      }
    }
  }
  const LaneKind kind = program.lanes[lane].kind;
  if ((instruction.op == Op::kSend) != (kind == LaneKind::kSend) ||
      (instruction.op == Op::kRecv) != (kind == LaneKind::kRecv)) {
    return invalid("is on a lane of another kind");
  }
  if (instruction.op == Op::kSend && instruction.reads.empty()) return invalid("reads no slot");
  if (instruction.op == Op::kRecv && instruction.writes.empty()) return invalid("writes no slot");
  return absl::OkStatus();
}

// Names a message by what made it: "2F1".
std::string MessageName(const Instruction& instruction, const program::Lane& lane) {
  return absl::StrCat(instruction.stage.value(), program::DirectionName(lane.direction),
                      instruction.microbatch.value());
}

}  // namespace

std::optional<program::Wait> NormCheckOf(const Program& program) {
  if (!program::OverlapsSteps(program)) return std::nullopt;
  const auto check = std::ranges::find(program.body, Op::kNormExchange, &Instruction::op);
  if (check == program.body.end()) return std::nullopt;
  const auto position = std::count_if(program.body.begin(), check, [&](const Instruction& each) {
    return each.lane == check->lane;
  });
  return program::Wait{check->lane, static_cast<std::int32_t>(position)};
}

absl::StatusOr<std::vector<std::unique_ptr<Lane>>> MakeLanes(const Program& program) {
  for (const auto* list : {&program.prologue, &program.body, &program.epilogue}) {
    for (const Instruction& instruction : *list) {
      RETURN_IF_ERROR(CheckInstruction(program, instruction));
    }
  }
  std::vector<std::unique_ptr<Lane>> lanes;
  for (std::size_t i = 0; i < program.lanes.size(); ++i) {
    auto lane = std::make_unique<Lane>();
    lane->id = LaneId(static_cast<std::int32_t>(i));
    lane->description = &program.lanes[i];
    lane->name = program::LaneName(program.lanes[i]);
    lane->awaited = std::vector<std::atomic<std::uint64_t>>(2 * program.lanes.size());
    for (std::atomic<std::uint64_t>& count : lane->awaited) count = kNothingAwaited;
    lane->own.index = i;
    lane->side.index = program.lanes.size() + i;
    lanes.push_back(std::move(lane));
  }
  const program::WaitLists waits = program::Dependencies(program);
  const std::vector<std::size_t> meetings = program::MeetingOffsets(program);
  for (std::size_t i = 0; i < program.body.size(); ++i) {
    const Instruction& instruction = program.body[i];
    lanes[instruction.lane.value()]->entries.push_back(
        {.instruction = &instruction,
         .body_index = static_cast<std::int32_t>(i),
         .waits = {waits[i].begin(), waits[i].end()},
         .parts = program::PartListOf(instruction, program),
         .first_meeting = meetings[i],
         .num_meetings = meetings[i + 1] - meetings[i]});
  }
  return lanes;
}

int PartUnderWay(const LaneEntry& entry, int part) {
  const bool is_its = part >= 0 && part < std::ssize(entry.parts) && entry.parts[part].meets();
  return is_its ? part : -1;
}

std::string DescribeWait(const Program& program, const std::vector<std::unique_ptr<Lane>>& lanes,
                         const LaneEntry& entry, std::int32_t activity, int part) {
  if (activity == kReporting) return "the report of an earlier step";
  if (activity == kAwaitingDevice) return "what its device was given before";
  if (activity == kAwaitingNorm) return "lane reduce: NORM_EXCHANGE";
  if (activity >= 0) {
    const program::Wait wait = entry.waits[activity];
    const Lane& other = *lanes[wait.lane.value()];
    const std::int64_t position = wait.position >= 0
                                      ? wait.position
                                      : wait.position + static_cast<std::int64_t>(other.length());
    return absl::StrCat("lane ", other.name, ": ",
                        program::ToString(*other.entries[position].instruction, program));
  }
  if (activity != kRunning) return "";
  if (part >= 0) {
    const program::PartGroup group = entry.parts[part].group;
    const char* const shared = group == program::PartGroup::kContext  ? "its sequences"
                               : group == program::PartGroup::kExpert ? "its experts"
                                                                      : "its layers";
    return absl::StrCat(program::PartName(entry.parts, part), " with the other ranks that share ",
                        shared);
  }
  const program::Lane& lane = *lanes[entry.instruction->lane.value()]->description;
  switch (entry.instruction->op) {
    case Op::kSend:
      return absl::StrCat("send of ", MessageName(*entry.instruction, lane), " taken by pp rank ",
                          lane.peer.value());
    case Op::kRecv:
      return absl::StrCat("RECV ", MessageName(*entry.instruction, lane), " from pp rank ",
                          lane.peer.value());
    case Op::kReduceGrad:
    case Op::kGatherWeights:
    case Op::kUnshard:
      return absl::StrCat(program::ToString(*entry.instruction, program),
                          " with the other ranks that hold stage ",
                          entry.instruction->stage.value());
    case Op::kReduceTied:
      return "REDUCE_TIED with the rank at the other end of the pipeline";
    case Op::kRows:
    case Op::kShare:
    case Op::kGather:
    case Op::kReturn:
    case Op::kRowsGrad:
    case Op::kNormExchange:
    case Op::kEval:
      return absl::StrCat(program::ToString(*entry.instruction, program), " with all ranks");
    default:
      return "";
  }
}

}  // namespace takt::engine
