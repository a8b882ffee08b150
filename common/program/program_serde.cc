// SPDX-License-Identifier: Apache-2.0
#include "common/program/program_serde.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace takt::program {
namespace {

static_assert(static_cast<int>(Op::kSpeculate) == v1::OP_SPECULATE);
static_assert(static_cast<int>(SlotKind::kShard) == v1::SLOT_KIND_SHARD);
static_assert(static_cast<int>(LaneKind::kVocabulary) == v1::LANE_KIND_VOCABULARY);
static_assert(static_cast<int>(Direction::kGradient) == v1::DIRECTION_GRADIENT);
static_assert(static_cast<int>(PartKind::kExchange) == v1::PART_KIND_EXCHANGE);
static_assert(static_cast<int>(PartGroup::kExpert) == v1::PART_GROUP_EXPERT);

using ProtoInstructions = google::protobuf::RepeatedPtrField<v1::Instruction>;

void InstructionsToProto(const std::vector<Instruction>& from, ProtoInstructions* to) {
  to->Reserve(static_cast<int>(from.size()));
  for (const Instruction& instruction : from) {
    v1::Instruction* out = to->Add();
    out->set_op(static_cast<v1::Op>(instruction.op));
    out->set_lane(instruction.lane.value());
    out->set_stage(instruction.stage.value());
    out->set_microbatch(instruction.microbatch.value());
    out->set_step_ahead(instruction.step_ahead);
    out->set_layer(instruction.layer.value());
    out->set_bytes(instruction.bytes);
    if (instruction.num_microbatches > 1) {
      out->set_num_microbatches(instruction.num_microbatches);
    }
    if (instruction.op == Op::kOverlap) {
      out->set_backward_stage(instruction.backward_stage.value());
      out->set_backward_microbatch(instruction.backward_microbatch.value());
    }
    for (const SlotId slot : instruction.reads) out->add_reads(slot.value());
    for (const SlotId slot : instruction.writes) out->add_writes(slot.value());
  }
}

std::vector<Instruction> InstructionsFromProto(const ProtoInstructions& from) {
  std::vector<Instruction> to;
  to.reserve(static_cast<std::size_t>(from.size()));
  for (const v1::Instruction& in : from) {
    Instruction& instruction = to.emplace_back();
    instruction.op = static_cast<Op>(in.op());
    instruction.lane = LaneId(in.lane());
    instruction.stage = StageId(in.stage());
    instruction.microbatch = MicrobatchId(in.microbatch());
    instruction.step_ahead = in.step_ahead();
    instruction.layer = LayerId(in.layer());
    instruction.bytes = in.bytes();
    if (in.has_num_microbatches()) instruction.num_microbatches = in.num_microbatches();
    if (in.has_backward_stage()) instruction.backward_stage = StageId(in.backward_stage());
    if (in.has_backward_microbatch()) {
      instruction.backward_microbatch = MicrobatchId(in.backward_microbatch());
    }
    for (const std::int32_t slot : in.reads()) instruction.reads.push_back(SlotId(slot));
    for (const std::int32_t slot : in.writes()) instruction.writes.push_back(SlotId(slot));
  }
  return to;
}

void PartListsToProto(const Program& program, v1::Program& proto) {
  for (const PartList& list : program.part_lists) {
    v1::PartList* out = proto.add_part_lists();
    out->set_op(static_cast<v1::Op>(list.op));
    out->set_stage(list.stage.value());
    if (list.op == Op::kOverlap) out->set_backward_stage(list.backward_stage.value());
    for (const Part& part : list.parts) {
      v1::Part* added = out->add_parts();
      added->set_kind(static_cast<v1::PartKind>(part.kind));
      added->set_group(static_cast<v1::PartGroup>(part.group));
      added->set_bytes(part.bytes);
    }
  }
}

std::vector<PartList> PartListsFromProto(const v1::Program& proto) {
  std::vector<PartList> lists;
  for (const v1::PartList& in : proto.part_lists()) {
    PartList& list = lists.emplace_back();
    list.op = static_cast<Op>(in.op());
    list.stage = StageId(in.stage());
    if (in.has_backward_stage()) list.backward_stage = StageId(in.backward_stage());
    for (const v1::Part& part : in.parts()) {
      list.parts.push_back(
          {static_cast<PartKind>(part.kind()), static_cast<PartGroup>(part.group()), part.bytes()});
    }
  }
  return lists;
}

// proto3 keeps unknown enumerators as numbers. They must not be cut to a byte and taken for
// another.
template <class Enum>
bool Fits(Enum value) {
  return value >= 0 && value <= 255;
}

absl::Status CheckEnumerators(const v1::Program& proto) {
  bool ok = true;
  for (const v1::Slot& slot : proto.slots()) ok = ok && Fits(slot.kind());
  for (const v1::Lane& lane : proto.lanes()) ok = ok && Fits(lane.kind()) && Fits(lane.direction());
  for (const ProtoInstructions* part : {&proto.prologue(), &proto.body(), &proto.epilogue()}) {
    for (const v1::Instruction& instruction : *part) ok = ok && Fits(instruction.op());
  }
  for (const v1::PartList& list : proto.part_lists()) {
    ok = ok && Fits(list.op());
    for (const v1::Part& each : list.parts()) ok = ok && Fits(each.kind()) && Fits(each.group());
  }
  if (ok) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "program has an unknown op, slot kind, lane kind, direction or part");
}

// Returns whether a stage reads tokens that neither looks up embeddings nor computes a loss.
bool TellsDocumentsApart(const Program& program) {
  const int last = program.num_stages - 1;
  const bool spreads = SpreadsVocabulary(program);
  return std::ranges::any_of(program.body, [&](const Instruction& each) {
    const int stage = each.stage.value();
    if (!IsCompute(each.op) || IsOfVocabulary(each.op)) return false;
    if (stage == last || (stage == 0 && !spreads)) return false;
    return FindSlot(program, each.reads, SlotKind::kTokens, StageId(-1)).value() >= 0;
  });
}

// The oldest version that can say this program, so that older readers take what they understand.
int VersionFor(const Program& program) {
  if (OverlapsSteps(program)) return SpreadsVocabulary(program) ? 12 : 11;
  if (FreesWeights(program)) return 10;
  if (!program.part_lists.empty()) return 9;
  if (TellsDocumentsApart(program)) return 8;
  if (ShardsOptimizer(program)) return 7;
  if (SpreadsVocabulary(program)) return 6;
  if (MergesWeightGrads(program)) return 5;
  const bool recomputes =
      std::any_of(program.slots.begin(), program.slots.end(),
                  [](const Slot& slot) { return slot.kind == SlotKind::kRecomputed; });
  if (recomputes) return 4;
  if (IsAsynchronous(program)) return 3;
  int version = program.mirror.value() >= 0 ? 2 : 1;
  for (const auto* part : {&program.prologue, &program.body, &program.epilogue}) {
    for (const Instruction& instruction : *part) {
      if (instruction.op == Op::kOverlap) version = std::max(version, 2);
      if (instruction.step_ahead > 0) version = 3;
    }
  }
  return version;
}

}  // namespace

v1::Program ToProto(const Program& program) {
  v1::Program proto;
  proto.set_version(VersionFor(program));
  proto.set_pp_rank(program.pp_rank.value());
  proto.set_pp_size(program.pp_size);
  proto.set_num_stages(program.num_stages);
  proto.set_num_microbatches(program.num_microbatches);
  if (program.mirror.value() >= 0) proto.set_mirror(program.mirror.value());
  proto.set_schedule(program.schedule);
  for (const Slot& slot : program.slots) {
    v1::Slot* out = proto.add_slots();
    out->set_kind(static_cast<v1::SlotKind>(slot.kind));
    out->set_stage(slot.stage.value());
    out->set_index(slot.index);
    out->set_bytes(slot.bytes);
    out->set_version(slot.version);
  }
  for (const Lane& lane : program.lanes) {
    v1::Lane* out = proto.add_lanes();
    out->set_kind(static_cast<v1::LaneKind>(lane.kind));
    out->set_peer(lane.peer.value());
    out->set_direction(static_cast<v1::Direction>(lane.direction));
  }
  PartListsToProto(program, proto);
  InstructionsToProto(program.prologue, proto.mutable_prologue());
  InstructionsToProto(program.body, proto.mutable_body());
  InstructionsToProto(program.epilogue, proto.mutable_epilogue());
  return proto;
}

absl::StatusOr<Program> FromProto(const v1::Program& proto) {
  if (proto.version() < 1 || proto.version() > kProgramVersion) {
    return absl::FailedPreconditionError(absl::StrCat("program has version ", proto.version(),
                                                      ", this worker runs versions 1 to ",
                                                      kProgramVersion));
  }
  RETURN_IF_ERROR(CheckEnumerators(proto));
  Program program{.pp_rank = PpRank(proto.pp_rank()),
                  .pp_size = proto.pp_size(),
                  .num_stages = proto.num_stages(),
                  .num_microbatches = proto.num_microbatches(),
                  .mirror = PpRank(proto.has_mirror() ? proto.mirror() : -1),
                  .schedule = proto.schedule()};
  for (const v1::Slot& in : proto.slots()) {
    program.slots.push_back({static_cast<SlotKind>(in.kind()), StageId(in.stage()), in.index(),
                             in.bytes(), in.version()});
  }
  for (const v1::Lane& in : proto.lanes()) {
    program.lanes.push_back({static_cast<LaneKind>(in.kind()), PpRank(in.peer()),
                             static_cast<Direction>(in.direction())});
  }
  program.part_lists = PartListsFromProto(proto);
  program.prologue = InstructionsFromProto(proto.prologue());
  program.body = InstructionsFromProto(proto.body());
  program.epilogue = InstructionsFromProto(proto.epilogue());
  RETURN_IF_ERROR(CheckProgram(program));
  return program;
}

}  // namespace takt::program
