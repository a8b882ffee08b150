// SPDX-License-Identifier: Apache-2.0
// Executes several steps of lowered programs without a pause. Lanes start and finish in any order
// that their waits allow, and the test watches what slots hold while instructions run: lanes that
// wait as Dependencies says never disturb one another. Other tests damage programs: the proof sees
// the damage.
#include <algorithm>
#include <map>
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/program/compute_part.h"
#include "common/program/lowering.h"
#include "common/program/testing/any_stages.h"
#include "common/schedule/testing/any_family.h"
#include "common/schedule/testing/any_order.h"
#include "common/sim/prove.h"
#include "gtest/gtest.h"
#include "rapidcheck/gtest.h"

namespace takt::sim {
namespace {

using program::ComputePart;
using program::Instruction;
using program::LaneKind;
using program::Op;
using program::Program;
using program::SlotKind;
using program::Wait;
using schedule::Uniform;

constexpr int kSteps = 3;

// The contents of a slot: the result of the F ('F') or I ('I') of a stage, for a microbatch of a
// step. '?' stands for a result that is being written.
struct Value {
  char maker = ' ';
  int stage = -1, microbatch = -1, step = -1;
  bool operator==(const Value&) const = default;
};

struct LaneState {
  int rank = 0;
  int id = 0;
  std::vector<int> list;  // instructions of the body
  int done = 0;
  bool running = false;
};

class Executor {
 public:
  Executor(const std::vector<Program>& programs, bool has_optimizer)
      : programs_(programs), has_optimizer_(has_optimizer) {
    for (const Program& program : programs) {
      waits_.push_back(Dependencies(program));
      values_.emplace_back(program.slots.size());
      for (std::size_t lane = 0; lane < program.lanes.size(); ++lane) {
        index_[{program.pp_rank.value(), static_cast<int>(lane)}] = static_cast<int>(lanes_.size());
        lanes_.push_back({program.pp_rank.value(), static_cast<int>(lane)});
      }
      for (std::size_t i = 0; i < program.body.size(); ++i) {
        Lane(program.pp_rank.value(), program.body[i].lane.value())
            .list.push_back(static_cast<int>(i));
      }
    }
  }

  // Runs until nothing can go on. True: everything has run.
  bool Run() {
    for (;;) {
      std::vector<int> able;
      for (std::size_t i = 0; i < lanes_.size(); ++i) {
        if (lanes_[i].running || CanStart(lanes_[i])) able.push_back(static_cast<int>(i));
      }
      if (able.empty()) break;
      LaneState& lane = lanes_[able[Uniform(0, static_cast<int>(able.size()))]];
      const bool finish = lane.running;
      for (LaneState* each : Together(lane)) {
        finish ? Finish(*each) : Start(*each);
        each->running = !finish;
        each->done += finish ? 1 : 0;
      }
    }
    return std::all_of(lanes_.begin(), lanes_.end(),
                       [](const LaneState& lane) { return Over(lane); });
  }

 private:
  static bool Over(const LaneState& lane) {
    return lane.done == static_cast<int>(lane.list.size()) * kSteps;
  }
  LaneState& Lane(int rank, int id) { return lanes_[index_.at({rank, id})]; }
  int StepOf(const LaneState& lane) const { return lane.done / static_cast<int>(lane.list.size()); }
  int IndexOf(const LaneState& lane) const { return lane.list[lane.done % lane.list.size()]; }
  const Instruction& Next(const LaneState& lane) const {
    return programs_[lane.rank].body[IndexOf(lane)];
  }

  // The lane itself. With it comes, for a message, the lane at its other end, and for a meeting,
  // those of the other ranks. Null: such a lane is missing.
  std::vector<LaneState*> Together(LaneState& lane) {
    const program::Lane& what = programs_[lane.rank].lanes[lane.id];
    std::vector<LaneState*> all;
    if (what.kind == LaneKind::kSend || what.kind == LaneKind::kRecv) {
      for (LaneState& other : lanes_) {
        const program::Lane& end = programs_[other.rank].lanes[other.id];
        const bool opposite = (end.kind == LaneKind::kSend && what.kind == LaneKind::kRecv) ||
                              (end.kind == LaneKind::kRecv && what.kind == LaneKind::kSend);
        if (opposite && end.direction == what.direction && end.peer.value() == lane.rank &&
            what.peer.value() == other.rank) {
          all.push_back(&other);
        }
      }
    } else if (what.kind == LaneKind::kReduce) {
      for (LaneState& other : lanes_) {
        const bool reduces = programs_[other.rank].lanes[other.id].kind == LaneKind::kReduce;
        if (reduces && &other != &lane && Meets(Next(lane), lane.rank, other.rank)) {
          all.push_back(&other);
        }
      }
    }
    all.push_back(&lane);
    return all;
  }

  // NORM_EXCHANGE meets on all ranks, REDUCE_GRAD on those that hold a copy of the stage.
  bool Meets(const Instruction& instruction, int rank, int other) const {
    return instruction.op == Op::kNormExchange ||
           (instruction.op == Op::kReduceGrad && programs_[rank].mirror == PpRank(other));
  }

  bool CanStart(LaneState& lane) {
    const auto met = [&](LaneState* each) {
      if (Over(*each) || each->running) return false;
      for (const Wait& wait : waits_[each->rank][IndexOf(*each)]) {
        LaneState& other = Lane(each->rank, wait.lane.value());
        const int position = StepOf(*each) * static_cast<int>(other.list.size()) + wait.position;
        if (position >= other.done) return false;
      }
      return true;
    };
    if (Over(lane)) return false;
    const std::vector<LaneState*> all = Together(lane);
    if (!std::all_of(all.begin(), all.end(), met)) return false;
    return std::all_of(all.begin(), all.end(), [&](LaneState* each) {
      const bool reduces = programs_[each->rank].lanes[each->id].kind == LaneKind::kReduce;
      return !reduces || (Next(*each).op == Next(lane).op && Next(*each).layer == Next(lane).layer);
    });
  }

  static std::vector<ComputePart> PartsOf(const Instruction& instruction, const Program& program) {
    if (instruction.op == Op::kWeightGrad) return WeightGradParts(instruction, program);
    if (instruction.op != Op::kOverlap) return {program::WholePart(instruction)};
    const program::OverlapParts parts = program::PartsOf(instruction, program);
    return {parts.forward, parts.backward};
  }

  // One part for each microbatch, then one with what it touches of the stage.
  static std::vector<ComputePart> WeightGradParts(const Instruction& instruction,
                                                  const Program& program) {
    std::vector<ComputePart> parts = program::MicrobatchParts(instruction, program);
    ComputePart layers = program::WholePart(instruction);
    for (const ComputePart& part : parts) layers.reads = layers.reads.subspan(part.reads.size());
    parts.push_back(layers);
    return parts;
  }

  // Returns what a part of an instruction must find in a slot that it reads. None: anything will
  // do.
  std::optional<Value> Expected(const LaneState& lane, const ComputePart& part, SlotId slot) const {
    const int stage = part.stage.value();
    const int m = part.microbatch.value();
    const int step = StepOf(lane);
    switch (programs_[lane.rank].slots[slot.value()].kind) {
      case SlotKind::kTokens:
        return Value{'L', -1, -1, step};
      case SlotKind::kInput:
        return Value{'F', stage - 1, m, step};
      case SlotKind::kOutput:
        return Value{'F', stage, m, step};
      case SlotKind::kOutputGrad:
        return Value{'I', stage + 1, m, step};
      case SlotKind::kInputGrad:
        return Value{'I', stage, m, step};
      case SlotKind::kStash:
        return Value{part.op == Op::kWeightGrad ? 'I' : 'F', stage, m, step};
      case SlotKind::kRecomputed:
        return Value{'I', stage, m, step};
      case SlotKind::kWeights:
        if (!has_optimizer_) return std::nullopt;
        return step == 0 ? Value{} : Value{'O', -1, -1, step - 1};
      default:
        return std::nullopt;
    }
  }

  Value Made(const LaneState& lane, const ComputePart& part, SlotId slot) const {
    const int stage = part.stage.value();
    const int m = part.microbatch.value();
    const int step = StepOf(lane);
    const SlotKind kind = programs_[lane.rank].slots[slot.value()].kind;
    if (kind == SlotKind::kTokens) return {'L', -1, -1, step};
    if (kind == SlotKind::kWeights) return {'O', -1, -1, step};
    const bool forward =
        kind == SlotKind::kInput || kind == SlotKind::kOutput || part.op == Op::kForward;
    return {forward ? 'F' : 'I', stage, m, step};
  }

  void CheckReads(const LaneState& lane, bool at_start) {
    const Instruction& instruction = Next(lane);
    const Program& program = programs_[lane.rank];
    for (const ComputePart& part : PartsOf(instruction, program)) {
      for (const SlotId slot : part.reads) {
        const bool writes_too = std::find(instruction.writes.begin(), instruction.writes.end(),
                                          slot) != instruction.writes.end();
        if (!at_start && writes_too) continue;
        const std::optional<Value> expected = Expected(lane, part, slot);
        const Value& held = values_[lane.rank][slot.value()];
        if (held.maker == '?') RC_FAIL(ToString(instruction, program) + " reads a slot in use");
        if (expected.has_value() && held != *expected) {
          RC_FAIL(ToString(instruction, program) + " finds another value");
        }
      }
    }
  }

  void Start(LaneState& lane) {
    CheckReads(lane, true);
    for (const SlotId slot : Next(lane).writes) values_[lane.rank][slot.value()].maker = '?';
  }

  void Finish(LaneState& lane) {
    CheckReads(lane, false);
    for (const ComputePart& part : PartsOf(Next(lane), programs_[lane.rank])) {
      for (const SlotId slot : part.writes)
        values_[lane.rank][slot.value()] = Made(lane, part, slot);
    }
  }

  const std::vector<Program>& programs_;
  const bool has_optimizer_;
  std::vector<program::WaitLists> waits_;   // by rank
  std::vector<std::vector<Value>> values_;  // [rank][slot]
  std::map<std::pair<int, int>, int> index_;
  std::vector<LaneState> lanes_;
};

RC_GTEST_PROP(ExecutionProperty, LanesInAnyOrderNeverDisturbOneAnother, ()) {
  const schedule::Schedule schedule =
      Uniform(0, 2) == 0 ? schedule::AnyFamily() : schedule::AnyOrder();
  RC_PRE(schedule.num_stages * schedule.num_microbatches <= 64);
  const bool optimizer = Uniform(0, 3) != 0;
  const auto programs = program::Lower(schedule, {.stages = program::AnyStages(schedule.num_stages),
                                                  .reduce_gradients = Uniform(0, 2) == 0,
                                                  .separate_documents = Uniform(0, 2) == 0,
                                                  .merge_weight_grads = Uniform(0, 2) == 0,
                                                  .optimizer = optimizer});
  RC_ASSERT(programs.ok());
  RC_ASSERT(Executor(*programs, optimizer).Run());
}

// Damages one instruction in one way.
enum class Damage { kSwap, kDrop, kDouble, kSlot, kPeer, kMicrobatch, kNumMicrobatches };

// Returns what was done, for the report; "": it cannot be done to the instruction picked.
std::string Inflict(Damage damage, Program& program) {
  std::vector<Instruction>& body = program.body;
  const int size = static_cast<int>(body.size());
  const int i = Uniform(0, size);
  Instruction& picked = body[i];
  const std::string text = absl::StrCat("rank ", program.pp_rank.value(), " ",
                                        program::ToString(picked, program), " (", i, ")");
  switch (damage) {
    case Damage::kSwap: {
      const int other = Uniform(0, size);
      if (other == i) return "";
      std::swap(picked, body[other]);
      return absl::StrCat(text, " swapped with number ", other);
    }
    case Damage::kDrop:
      body.erase(body.begin() + i);
      return absl::StrCat(text, " dropped");
    case Damage::kDouble: {
      const Instruction copy = picked;
      const int place = Uniform(0, size + 1);
      body.insert(body.begin() + place, copy);
      return absl::StrCat(text, " doubled at ", place);
    }
    case Damage::kSlot: {
      std::vector<SlotId>& slots = Uniform(0, 2) == 0 ? picked.reads : picked.writes;
      if (slots.empty()) return "";
      const int k = Uniform(0, static_cast<int>(slots.size()));
      const SlotId other(Uniform(0, static_cast<int>(program.slots.size())));
      if (slots[k] == other) return "";
      slots[k] = other;
      return absl::StrCat(text, " uses slot ", other.value());
    }
    case Damage::kPeer: {
      program::Lane& lane = program.lanes[Uniform(0, static_cast<int>(program.lanes.size()))];
      const PpRank other(Uniform(0, program.pp_size));
      if (lane.peer.value() < 0 || lane.peer == other) return "";
      const std::string was = absl::StrCat(lane.peer.value());
      lane.peer = other;
      return absl::StrCat("rank ", program.pp_rank.value(), " talks to ", other.value(),
                          " instead of ", was);
    }
    case Damage::kMicrobatch: {
      const MicrobatchId other(Uniform(0, program.num_microbatches));
      if (picked.microbatch.value() < 0 || picked.microbatch == other) return "";
      picked.microbatch = other;
      return absl::StrCat(text, " has microbatch ", other.value());
    }
    case Damage::kNumMicrobatches: {
      if (picked.op != Op::kWeightGrad) return "";
      ++picked.num_microbatches;
      return absl::StrCat(text, " has one microbatch more");
    }
  }
  return "";
}

RC_GTEST_PROP(ProofProperty, CatchesEveryDamageThatDoesHarm, ()) {
  const schedule::Schedule schedule =
      Uniform(0, 2) == 0 ? schedule::AnyFamily() : schedule::AnyOrder();
  RC_PRE(schedule.num_stages * schedule.num_microbatches <= 64);
  const bool reduces = Uniform(0, 2) == 0, ties = Uniform(0, 2) == 0;
  const ProofOptions options{.sums = {.gradients = reduces, .tied_embeddings = ties},
                             .schedule = &schedule};
  const auto intact = program::Lower(schedule, {.stages = program::AnyStages(schedule.num_stages),
                                                .reduce_gradients = reduces,
                                                .tied_embeddings = ties,
                                                .merge_weight_grads = Uniform(0, 2) == 0})
                          .value();
  const absl::Status proof = Prove(intact, options);
  if (!proof.ok()) RC_FAIL(std::string(proof.message()));
  for (int attempt = 0; attempt < 20; ++attempt) {
    auto damaged = intact;
    const auto damage = static_cast<Damage>(Uniform(0, 7));
    const std::string what = Inflict(damage, damaged[Uniform(0, static_cast<int>(damaged.size()))]);
    if (what.empty()) continue;
    if (!Prove(damaged, options).ok()) continue;
    // If nothing orders two instructions, they may change places.
    if (damage != Damage::kSwap) RC_FAIL("not caught: " + what);
    if (!Executor(damaged, /*has_optimizer=*/true).Run()) RC_FAIL("never completes: " + what);
  }
}

}  // namespace
}  // namespace takt::sim
