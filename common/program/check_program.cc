// SPDX-License-Identifier: Apache-2.0
// Checks one program against the rules of docs/programs.md. sim::Prove checks what concerns several
// ranks together.
#include <algorithm>
#include <initializer_list>
#include <optional>
#include <set>
#include <tuple>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/program/compute_part.h"
#include "common/program/part_lists.h"
#include "common/program/program.h"
#include "common/program/remove_barrier.h"

namespace takt::program {
namespace {

constexpr int kMostStages = 1 << 20;
constexpr int kMostMicrobatches = 1 << 24;

absl::Status Wrong(const Program& program, std::string what) {
  return absl::InvalidArgumentError(
      absl::StrCat("program of pp rank ", program.pp_rank.value(), ": ", what));
}

absl::Status CheckHeader(const Program& program) {
  const auto in_range = [](int value, int most) { return value >= 1 && value <= most; };
  if (!in_range(program.pp_size, kMostStages)) return Wrong(program, "pp_size is out of range");
  if (!in_range(program.num_stages, kMostStages))
    return Wrong(program, "num_stages is out of range");
  if (!in_range(program.num_microbatches, kMostMicrobatches)) {
    return Wrong(program, "num_microbatches is out of range");
  }
  if (program.pp_rank.value() < 0 || program.pp_rank.value() >= program.pp_size) {
    return Wrong(program, absl::StrCat("pp_rank must be below pp_size (", program.pp_size, ")"));
  }
  const int mirror = program.mirror.value();
  if (mirror < -1 || mirror >= program.pp_size || program.mirror == program.pp_rank) {
    return Wrong(program, "mirror must be another rank, or none");
  }
  return absl::OkStatus();
}

absl::Status CheckLanes(const Program& program) {
  std::set<std::tuple<LaneKind, PpRank, Direction>> seen;
  for (std::size_t i = 0; i < program.lanes.size(); ++i) {
    const Lane& lane = program.lanes[i];
    const auto wrong = [&](std::string_view what) {
      return Wrong(program, absl::StrCat("lane ", i, " ", std::string(what)));
    };
    if (lane.kind < LaneKind::kCompute || lane.kind > LaneKind::kVocabulary)
      return wrong("has no known kind");
    const int peer = lane.peer.value();
    if (lane.kind == LaneKind::kSend || lane.kind == LaneKind::kRecv) {
      if (peer < 0 || peer >= program.pp_size || lane.peer == program.pp_rank) {
        return wrong("needs another rank as its peer");
      }
      if (lane.direction != Direction::kActivation && lane.direction != Direction::kGradient) {
        return wrong("needs a direction");
      }
    } else if (peer != -1 || lane.direction != Direction::kNone) {
      return wrong("has a peer or a direction, which only sends and receives have");
    }
    if (!seen.insert({lane.kind, lane.peer, lane.direction}).second) return wrong("is there twice");
  }
  return absl::OkStatus();
}

// Tokens and scalars have no stage. What belongs to the vocabulary has the stage after the last
// one, and so have its rows: two slots each of weights and gradients.
bool HasItsStage(const Program& program, const Slot& slot) {
  const int stage = slot.stage.value();
  if (slot.kind == SlotKind::kTokens || slot.kind == SlotKind::kScalars) return stage == -1;
  if (slot.kind >= SlotKind::kHeadInput && slot.kind <= SlotKind::kHeadGrad)
    return stage == program.num_stages;
  const bool of_layer = slot.kind == SlotKind::kWeights || slot.kind == SlotKind::kGradient;
  if (of_layer && stage == program.num_stages) return slot.index <= 1;
  return stage >= 0 && stage < program.num_stages;
}

absl::Status CheckSlotList(const Program& program) {
  for (std::size_t i = 0; i < program.slots.size(); ++i) {
    const Slot& slot = program.slots[i];
    const auto wrong = [&](std::string_view what) {
      return Wrong(program, absl::StrCat("slot ", i, " ", std::string(what)));
    };
    if (slot.kind < SlotKind::kTokens || slot.kind > SlotKind::kShard)
      return wrong("has no known kind");
    if (!HasItsStage(program, slot)) return wrong("has a stage out of range");
    if (slot.index < 0 || slot.bytes < 0) return wrong("has a negative index or size");
    if (slot.version < kForeseen || (slot.version != 0 && slot.kind != SlotKind::kWeights)) {
      return wrong("has a version, which only weights have");
    }
  }
  return absl::OkStatus();
}

// The kind of lane that an op belongs on; none: programs of this version do not have the op.
std::optional<LaneKind> LaneOf(const Instruction& instruction) {
  switch (instruction.op) {
    case Op::kLoad:
      return LaneKind::kLoad;
    case Op::kForward:
    case Op::kInputGrad:
    case Op::kWeightGrad:
    case Op::kBackward:
    case Op::kOverlap:
    case Op::kNormPartial:
    case Op::kOptimizer:
    case Op::kSnapshot:
    case Op::kVocabularyForward:
    case Op::kVocabularyBackward:
    case Op::kLoss:
      return LaneKind::kCompute;
    case Op::kSpeculate:
      return ForeseesRows(instruction) ? LaneKind::kVocabulary : LaneKind::kCompute;
    case Op::kRows:
    case Op::kShare:
    case Op::kGather:
    case Op::kReturn:
    case Op::kRowsGrad:
      return LaneKind::kVocabulary;
    case Op::kSend:
      return LaneKind::kSend;
    case Op::kRecv:
      return LaneKind::kRecv;
    case Op::kReduceGrad:
    case Op::kReduceTied:
    case Op::kNormExchange:
    case Op::kEval:
    case Op::kGatherWeights:
    case Op::kUnshard:
    case Op::kReshard:
      return LaneKind::kReduce;
    default:
      return std::nullopt;
  }
}

using SlotList = absl::InlinedVector<SlotId, 16>;

// Compares the slots of one instruction with the table. Each Take* removes what the table asks for,
// and nothing may be left over.
class SlotCheck {
 public:
  SlotCheck(const Program& program, const Instruction& instruction)
      : SlotCheck(program, WholePart(instruction)) {
    layer_ = instruction.layer.value();
  }

  SlotCheck(const Program& program, const ComputePart& part)
      : program_(program),
        stage_(part.stage.value()),
        last_(program.num_stages - 1),
        spreads_(SpreadsVocabulary(program)),
        reads_(part.reads.begin(), part.reads.end()),
        writes_(part.writes.begin(), part.writes.end()) {}

  bool Compute(Op op) {
    const bool forward = op == Op::kForward;
    bool ok = TakeMicrobatch(forward);
    // Some I recompute. sim::Prove finds where one should: no W may read what its I has not
    // written.
    if (op == Op::kInputGrad) Take(writes_, SlotKind::kRecomputed, stage_);
    ok = ok && TakeLayers(reads_, SlotKind::kWeights);
    if (op == Op::kBackward) ok = ok && TakeGradients();
    if (forward) {
      ok = ok && (stage_ == last_ ? TakeEnd()
                                  : Take(writes_, SlotKind::kOutput, stage_) ||
                                        Take(writes_, SlotKind::kInput, stage_ + 1));
    } else {
      if (spreads_ && stage_ == last_) {
        ok = ok && Take(reads_, SlotKind::kHeadGrad, last_ + 1);
      }
      ok = ok && ((stage_ == 0 && !spreads_) || Take(writes_, SlotKind::kInputGrad, stage_) ||
                  Take(writes_, SlotKind::kOutputGrad, stage_ - 1));
    }
    return ok && Take(writes_, SlotKind::kStash, stage_) && IsDone();
  }

  // The slots of a W: those that it reads for one microbatch (no others are there), and the rest.
  bool WeightGradMicrobatch() {
    const bool ok = TakeMicrobatch(/*forward=*/false);
    Take(reads_, SlotKind::kRecomputed, stage_);
    return ok && IsDone();
  }
  bool WeightGradLayers() {
    return TakeLayers(reads_, SlotKind::kWeights) && TakeGradients() && IsDone();
  }

  // S, T, LOSS and the meetings.
  bool OfVocabulary(Op op) {
    const int here = last_ + 1;  // the stage of their slots
    bool ok = true;
    switch (op) {
      case Op::kVocabularyForward:
        ok = Take(reads_, SlotKind::kHeadInput, here) && Take(reads_, SlotKind::kTokens, -1) &&
             Take(reads_, SlotKind::kWeights, here) &&
             Take(writes_, SlotKind::kVocabularyStash, here);
        break;
      case Op::kVocabularyBackward:
        ok = Take(reads_, SlotKind::kHeadInput, here) && Take(reads_, SlotKind::kTokens, -1) &&
             Take(reads_, SlotKind::kVocabularyStash, here) &&
             Take(reads_, SlotKind::kWeights, here) && Take(reads_, SlotKind::kGradient, here) &&
             Take(writes_, SlotKind::kVocabularyStash, here) &&
             Take(writes_, SlotKind::kPartialGrad, here) &&
             Take(writes_, SlotKind::kGradient, here);
        // Only the root's reports the loss.
        if (Take(reads_, SlotKind::kScalars, -1)) ok &= Take(writes_, SlotKind::kScalars, -1);
        break;
      case Op::kLoss:
        ok = Take(reads_, SlotKind::kTokens, -1) &&
             Take(reads_, SlotKind::kVocabularyStash, here) &&
             Take(reads_, SlotKind::kScalars, -1) && Take(writes_, SlotKind::kScalars, -1);
        break;
      case Op::kRows:
        ok = Take(reads_, SlotKind::kTokens, -1) && Take(reads_, SlotKind::kWeights, here);
        Take(writes_, SlotKind::kInput, 0);
        break;
      case Op::kRowsGrad:
        ok = Take(reads_, SlotKind::kTokens, -1) && Take(writes_, SlotKind::kGradient, here);
        Take(reads_, SlotKind::kInputGrad, 0);
        break;
      case Op::kShare:
        ok = Take(reads_, SlotKind::kHeadInput, here) || Take(writes_, SlotKind::kHeadInput, here);
        break;
      case Op::kGather:
        ok = writes_ == reads_ && Take(reads_, SlotKind::kVocabularyStash, here) &&
             Take(writes_, SlotKind::kVocabularyStash, here);
        break;
      default:  // kReturn
        ok = Take(reads_, SlotKind::kPartialGrad, here);
        Take(writes_, SlotKind::kHeadGrad, here);
    }
    return ok && IsDone();
  }

  bool Message(Op op, Direction direction) {
    const bool activation = direction == Direction::kActivation;
    const int taker = stage_ + (activation ? 1 : -1);
    if (taker < 0 || taker > last_) return false;
    const bool ok =
        op == Op::kSend
            ? Take(reads_, activation ? SlotKind::kOutput : SlotKind::kInputGrad, stage_)
            : Take(writes_, activation ? SlotKind::kInput : SlotKind::kOutputGrad, taker);
    return ok && IsDone();
  }

  // LOAD, reductions, norm and optimizer may touch slots of these kinds.
  bool Rest(Op op) const {
    switch (op) {
      case Op::kLoad:
        return reads_.empty() && writes_.size() == 1 && Only(writes_, {SlotKind::kTokens});
      case Op::kReduceGrad:
        return IsOneOfLayer(SlotKind::kGradient);
      case Op::kGatherWeights:
        return IsOneOfLayer(SlotKind::kWeights);
      case Op::kUnshard:
        return AreOfStage(reads_, SlotKind::kShard) && AreOfStage(writes_, SlotKind::kWeights) &&
               reads_.size() == writes_.size();
      case Op::kReshard:
        return reads_.empty() && AreOfStage(writes_, SlotKind::kWeights);
      case Op::kReduceTied:
        return !reads_.empty() && reads_.size() <= 2 && writes_ == reads_ &&
               Only(reads_, {SlotKind::kGradient});
      case Op::kNormPartial:
        return Only(reads_, {SlotKind::kGradient, SlotKind::kScalars}) && !writes_.empty() &&
               Only(writes_, {SlotKind::kScalars});
      case Op::kNormExchange:
      case Op::kEval:
        return reads_.size() == 1 && writes_ == reads_ && Only(reads_, {SlotKind::kScalars});
      case Op::kOptimizer:
        return Only(reads_, {SlotKind::kGradient, SlotKind::kScalars, SlotKind::kWeights}) &&
               (Only(writes_, {SlotKind::kWeights}) || Only(writes_, {SlotKind::kShard}));
      case Op::kSpeculate:
        return Only(reads_, {SlotKind::kGradient, SlotKind::kScalars, SlotKind::kWeights}) &&
               Only(writes_, {SlotKind::kWeights}) &&
               std::ranges::all_of(writes_, [this](SlotId id) {
                 const bool of_rows = At(id).stage.value() == last_ + 1;
                 return At(id).version == kForeseen && stage_ == (of_rows ? last_ + 1 : -1);
               });
      case Op::kSnapshot:
        return Only(reads_, {SlotKind::kWeights}) && Only(writes_, {SlotKind::kWeights});
      default:
        return false;
    }
  }

 private:
  const Slot& At(SlotId id) const { return program_.slots[id.value()]; }

  bool Take(SlotList& from, SlotKind kind, int stage) {
    for (auto it = from.begin(); it != from.end(); ++it) {
      if (At(*it).kind != kind || At(*it).stage.value() != stage) continue;
      from.erase(it);
      return true;
    }
    return false;
  }

  // Takes what an F of the last stage leaves: a loss, or the input of the heads of all ranks.
  bool TakeEnd() {
    if (spreads_) return Take(writes_, SlotKind::kHeadInput, last_ + 1);
    return Take(reads_, SlotKind::kScalars, -1) && Take(writes_, SlotKind::kScalars, -1);
  }

  bool IsDone() const { return reads_.empty() && writes_.empty(); }

  // Takes what is read of a microbatch. Every stage may read tokens, to tell documents apart. Where
  // the vocabulary is spread, none needs them otherwise.
  bool TakeMicrobatch(bool forward) {
    const bool ends = !spreads_ && (stage_ == 0 || stage_ == last_);
    bool ok = (stage_ == 0 && !spreads_) || Take(reads_, SlotKind::kInput, stage_);
    const bool reads_tokens = Take(reads_, SlotKind::kTokens, -1);
    ok = ok && (!ends || reads_tokens);
    if (forward) return ok;
    ok = ok && Take(reads_, SlotKind::kStash, stage_);
    return ok && (stage_ == last_ || Take(reads_, SlotKind::kOutputGrad, stage_));
  }

  bool TakeGradients() {
    return TakeLayers(reads_, SlotKind::kGradient) && TakeLayers(writes_, SlotKind::kGradient);
  }

  // Takes all slots of one kind and this stage. There must be at least one.
  bool TakeLayers(SlotList& from, SlotKind kind) {
    bool any = false;
    while (Take(from, kind, stage_)) any = true;
    return any;
  }

  // Returns whether one slot is read and written, that of the instruction's layer.
  bool IsOneOfLayer(SlotKind kind) const {
    return reads_.size() == 1 && writes_ == reads_ && Only(reads_, {kind}) &&
           At(reads_[0]).index == layer_ && At(reads_[0]).stage.value() == stage_;
  }

  // Returns whether they are slots of one kind and of this stage, at least one.
  bool AreOfStage(const SlotList& slots, SlotKind kind) const {
    return !slots.empty() && std::ranges::all_of(slots, [&](SlotId id) {
      return At(id).kind == kind && At(id).stage.value() == stage_;
    });
  }

  bool Only(const SlotList& slots, std::initializer_list<SlotKind> kinds) const {
    for (const SlotId id : slots) {
      if (std::find(kinds.begin(), kinds.end(), At(id).kind) == kinds.end()) return false;
    }
    return true;
  }

  const Program& program_;
  int layer_ = -1;
  const int stage_;
  const int last_;
  const bool spreads_;
  SlotList reads_, writes_;  // those not yet accounted for
};

bool WeightGradTouchesItsSlots(const Program& program, const Instruction& instruction) {
  const std::vector<ComputePart> parts = MicrobatchParts(instruction, program);
  std::size_t num_reads = 0;
  for (const ComputePart& part : parts) {
    if (!SlotCheck(program, part).WeightGradMicrobatch()) return false;
    num_reads += part.reads.size();
  }
  ComputePart layers = WholePart(instruction);
  layers.reads = layers.reads.subspan(num_reads);
  return !parts.empty() && SlotCheck(program, layers).WeightGradLayers();
}

bool TouchesItsSlots(const Program& program, const Instruction& instruction) {
  switch (instruction.op) {
    case Op::kForward:
    case Op::kInputGrad:
    case Op::kBackward:
      return SlotCheck(program, instruction).Compute(instruction.op);
    case Op::kWeightGrad:
      return WeightGradTouchesItsSlots(program, instruction);
    case Op::kOverlap: {
      const OverlapParts parts = PartsOf(instruction, program);
      return SlotCheck(program, parts.forward).Compute(Op::kForward) &&
             SlotCheck(program, parts.backward).Compute(Op::kBackward);
    }
    case Op::kSend:
    case Op::kRecv:
      return SlotCheck(program, instruction)
          .Message(instruction.op, program.lanes[instruction.lane.value()].direction);
    case Op::kRows:
    case Op::kShare:
    case Op::kGather:
    case Op::kReturn:
    case Op::kRowsGrad:
    case Op::kVocabularyForward:
    case Op::kVocabularyBackward:
    case Op::kLoss:
      return SlotCheck(program, instruction).OfVocabulary(instruction.op);
    default:
      return SlotCheck(program, instruction).Rest(instruction.op);
  }
}

// Returns what is out of range, "" if nothing is. first, last: the stages that there may be.
std::string_view OutOfRange(const Program& program, StageId stage, MicrobatchId microbatch,
                            int first, int last) {
  if (stage.value() < first || stage.value() > last) return "has a stage out of range";
  if (microbatch.value() < 0 || microbatch.value() >= program.num_microbatches) {
    return "has a microbatch out of range";
  }
  return "";
}

absl::Status CheckInstruction(const Program& program, const Instruction& instruction,
                              std::string_view where) {
  const auto wrong = [&](std::string what) {
    return Wrong(program, absl::StrCat(std::string(where), ": ", what));
  };
  const int lane = instruction.lane.value();
  if (lane < 0 || lane >= static_cast<int>(program.lanes.size()))
    return wrong("lane is out of range");
  for (const std::vector<SlotId>* list : {&instruction.reads, &instruction.writes}) {
    for (const SlotId slot : *list) {
      if (slot.value() < 0 || slot.value() >= static_cast<int>(program.slots.size())) {
        return wrong(absl::StrCat("slot ", slot.value(), " is out of range"));
      }
    }
  }
  const std::optional<LaneKind> belongs = LaneOf(instruction);
  if (!belongs.has_value()) {
    return wrong(absl::StrCat("op ", static_cast<int>(instruction.op), " is not part of version ",
                              kProgramVersion));
  }
  const auto wrong_instruction = [&](std::string_view what) {
    return wrong(absl::StrCat(ToString(instruction, program), " ", std::string(what)));
  };
  if (instruction.step_ahead != 0 && instruction.step_ahead != 1) {
    return wrong_instruction("works for another step than this one and the next");
  }
  const Lane& its_lane = program.lanes[lane];
  if (its_lane.kind != *belongs) return wrong_instruction("is on a lane of another kind");

  const bool message = instruction.op == Op::kSend || instruction.op == Op::kRecv;
  const bool of_vocabulary = IsOfVocabulary(instruction.op);
  if (IsCompute(instruction.op) || message || of_vocabulary) {
    const int first = of_vocabulary ? program.num_stages : 0;
    const int last = of_vocabulary ? program.num_stages : program.num_stages - 1;
    const std::string_view problem =
        OutOfRange(program, instruction.stage, instruction.microbatch, first, last);
    if (!problem.empty()) return wrong_instruction(problem);
  }
  const int num_microbatches = instruction.num_microbatches;
  if (num_microbatches != 1 &&
      (instruction.op != Op::kWeightGrad || num_microbatches < 1 ||
       num_microbatches > program.num_microbatches - instruction.microbatch.value())) {
    return wrong_instruction("is of more microbatches than it can be");
  }
  if (num_microbatches != 1 && !PartListOf(instruction, program).empty()) {
    return wrong_instruction("is of several microbatches, but ranks meet in it");
  }
  if (instruction.op == Op::kOverlap) {
    const std::string_view problem =
        OutOfRange(program, instruction.backward_stage, instruction.backward_microbatch,
                   /*first=*/0, program.num_stages - 1);
    if (!problem.empty()) return wrong_instruction(problem);
    if (instruction.microbatch == instruction.backward_microbatch) {
      return wrong_instruction("overlaps a microbatch with itself");
    }
  }
  if (!TouchesItsSlots(program, instruction)) {
    return wrong_instruction("does not touch the slots that docs/programs.md says");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckProgram(const Program& program) {
  RETURN_IF_ERROR(CheckHeader(program));
  RETURN_IF_ERROR(CheckLanes(program));
  RETURN_IF_ERROR(CheckSlotList(program));
  RETURN_IF_ERROR(CheckPartLists(program));
  const std::pair<std::string_view, const std::vector<Instruction>*> parts[] = {
      {"prologue", &program.prologue}, {"body", &program.body}, {"epilogue", &program.epilogue}};
  for (const auto& [name, part] : parts) {
    for (std::size_t i = 0; i < part->size(); ++i) {
      const absl::Status status = CheckInstruction(program, (*part)[i], name);
      if (!status.ok()) return Annotate(status, absl::StrCat("instruction ", i));
    }
  }
  return absl::OkStatus();
}

}  // namespace takt::program
