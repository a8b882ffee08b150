// SPDX-License-Identifier: Apache-2.0
#include "common/program/remove_barrier.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace takt::program {
namespace {

// Says of each instruction of a body whether it runs ahead.
using Ahead = std::vector<bool>;

bool IsMessage(Op op) { return op == Op::kSend || op == Op::kRecv; }

// Returns why steps of the program cannot overlap: what it has; "" if they can.
std::string_view Unknown(const Program& program) {
  if (IsAsynchronous(program)) return "has no flush";
  if (program.mirror.value() >= 0) return "has two copies of the weights";
  if (SpreadsVocabulary(program)) return "spreads the vocabulary (parallelism.vocabulary)";
  if (FreesWeights(program)) return "frees weights (parallelism.shard)";
  if (!program.part_lists.empty())
    return "meets other ranks inside its passes (parallelism.tensor, context or expert)";
  const bool optimizes = std::ranges::any_of(
      program.body, [](const Instruction& each) { return each.op == Op::kOptimizer; });
  return optimizes ? "" : "has no optimizer";
}

// Returns whether the instruction passes an activation to a higher rank, at either end. In a
// prologue a rank waits until its message is taken. If all messages go to higher ranks, no ranks
// wait for one another.
bool PassesUp(const Program& program, const Instruction& each) {
  if (!IsMessage(each.op)) return false;
  const Lane& lane = program.lanes[each.lane.value()];
  const bool is_lower =
      each.op == Op::kSend ? program.pp_rank < lane.peer : lane.peer < program.pp_rank;
  return lane.direction == Direction::kActivation && is_lower;
}

// Returns the forwards before the first backward, with what brings them tokens and messages.
Ahead BeforeTheFirstBackward(const Program& program) {
  Ahead ahead(program.body.size(), false);
  for (std::size_t i = 0; i < ahead.size(); ++i) {
    const Instruction& each = program.body[i];
    if (IsCompute(each.op) && each.op != Op::kForward) break;
    ahead[i] = each.op == Op::kLoad || each.op == Op::kForward || PassesUp(program, each);
  }
  return ahead;
}

// Takes out what waits for an instruction that does not run ahead, because that comes first on its
// lane or touches its slots. Returns whether there was any.
bool TakeOutDependent(const Program& program, Ahead& ahead) {
  std::vector<bool> lane_waits(program.lanes.size(), false);
  std::vector<bool> is_read(program.slots.size(), false), is_written(program.slots.size(), false);
  bool any = false;
  for (std::size_t i = 0; i < ahead.size(); ++i) {
    const Instruction& each = program.body[i];
    bool waits = lane_waits[each.lane.value()];
    for (const SlotId slot : each.reads) waits = waits || is_written[slot.value()];
    for (const SlotId slot : each.writes)
      waits = waits || is_written[slot.value()] || is_read[slot.value()];
    if (ahead[i] && !waits) continue;
    any = any || ahead[i];
    ahead[i] = false;
    lane_waits[each.lane.value()] = true;
    for (const SlotId slot : each.reads) is_read[slot.value()] = true;
    for (const SlotId slot : each.writes) is_written[slot.value()] = true;
  }
  return any;
}

// Takes out the messages of which one end alone runs ahead. Returns whether there was any.
bool TakeOutSingle(const std::vector<Program>& programs, std::vector<Ahead>& ahead) {
  std::map<std::pair<StageId, MicrobatchId>, int> ends;
  const auto for_each_message = [&](const auto& call) {
    for (std::size_t rank = 0; rank < programs.size(); ++rank) {
      for (std::size_t i = 0; i < ahead[rank].size(); ++i) {
        const Instruction& each = programs[rank].body[i];
        if (ahead[rank][i] && IsMessage(each.op))
          call(std::pair(each.stage, each.microbatch), rank, i);
      }
    }
  };
  for_each_message([&](const auto& message, std::size_t, std::size_t) { ++ends[message]; });
  bool any = false;
  for_each_message([&](const auto& message, std::size_t rank, std::size_t i) {
    if (ends.at(message) > 1) return;
    ahead[rank][i] = false;
    any = true;
  });
  return any;
}

std::vector<Ahead> FindAhead(const std::vector<Program>& programs) {
  std::vector<Ahead> ahead;
  for (const Program& program : programs) ahead.push_back(BeforeTheFirstBackward(program));
  bool any = true;
  while (any) {
    any = TakeOutSingle(programs, ahead);
    for (std::size_t rank = 0; rank < programs.size(); ++rank)
      any |= TakeOutDependent(programs[rank], ahead[rank]);
  }
  return ahead;
}

// A prologue runs one instruction at a time. So a receive comes right before what reads its
// message, behind the receives before it on its lane. Those that nothing reads come last.
std::vector<Instruction> InOrderOfUse(const std::vector<Instruction>& list) {
  std::vector<Instruction> ordered, waiting;
  for (const Instruction& each : list) {
    if (each.op == Op::kRecv) {
      waiting.push_back(each);
      continue;
    }
    const auto read = std::ranges::find_if(waiting, [&](const Instruction& receive) {
      return std::ranges::find(each.reads, receive.writes[0]) != each.reads.end();
    });
    if (read != waiting.end()) {
      const LaneId lane = read->lane;
      const auto kept = std::stable_partition(
          waiting.begin(), read + 1,
          [lane](const Instruction& receive) { return receive.lane != lane; });
      ordered.insert(ordered.end(), kept, read + 1);
      waiting.erase(kept, read + 1);
    }
    ordered.push_back(each);
  }
  ordered.insert(ordered.end(), waiting.begin(), waiting.end());
  return ordered;
}

// Writes the program of one rank.
class Rewriter {
 public:
  // program: borrowed.
  Rewriter(const Program& program, const Ahead& ahead) : program_(program), frame_(program) {
    frame_.prologue.clear();
    frame_.body.clear();
    for (std::size_t i = 0; i < program.slots.size(); ++i) {
      const SlotId id(static_cast<std::int32_t>(i));
      Slot slot = program.slots[i];
      if (slot.kind == SlotKind::kScalars) sums_ = id;
      if (slot.kind != SlotKind::kWeights) continue;
      slot.version = kForeseen;
      foreseen_[id] = Add(slot);
    }
    met_ = Add({.kind = SlotKind::kScalars, .index = 1});
    for (std::size_t i = 0; i < program.body.size(); ++i) {
      (ahead[i] ? first_ : rest_).push_back(program.body[i]);
      if (program.body[i].op == Op::kOptimizer) optimizer_ = program.body[i];
      if (program.body[i].op == Op::kGatherWeights) gathers_.push_back(program.body[i]);
    }
  }

  Program Step() const {
    Program step = frame_;
    step.prologue = program_.prologue;
    Append(InOrderOfUse(first_), step.prologue);
    for (Instruction each : rest_) {
      if (each.op == Op::kOptimizer || each.op == Op::kGatherWeights) continue;
      // The next losses are summed while the ranks meet over these.
      if (each.op == Op::kNormPartial) each.writes.push_back(met_);
      if (each.op == Op::kNormExchange) each.reads = each.writes = {met_};
      const bool sums_up = each.op == Op::kNormPartial;
      step.body.push_back(std::move(each));
      if (!sums_up) continue;
      step.body.push_back(Speculate());
      Append(ForeseenGathers(), step.body);
    }
    Append(NextForwards(), step.body);
    step.body.push_back(optimizer_);
    std::ranges::replace(step.body.back().reads, sums_, met_);
    Append(gathers_, step.body);
    return step;
  }

 private:
  static void Append(std::vector<Instruction> from, std::vector<Instruction>& to) {
    std::ranges::move(from, std::back_inserter(to));
  }

  SlotId Add(const Slot& slot) {
    frame_.slots.push_back(slot);
    return SlotId(static_cast<std::int32_t>(frame_.slots.size()) - 1);
  }

  Instruction Speculate() const {
    Instruction added;
    added.op = Op::kSpeculate;
    added.lane = optimizer_.lane;
    added.reads = optimizer_.reads;
    for (const SlotId weights : optimizer_.writes) {
      added.reads.push_back(weights);
      added.writes.push_back(foreseen_.at(weights));
    }
    return added;
  }

  // Puts the foreseen weights in the place of the true ones.
  void Foresee(std::vector<SlotId>& slots) const {
    for (SlotId& slot : slots) {
      const auto weights = foreseen_.find(slot);
      if (weights != foreseen_.end()) slot = weights->second;
    }
  }

  // Where replicas share the optimizer's state, SPECULATE makes shards. The forwards ahead need
  // them whole before the norm is known, so these come before NORM_EXCHANGE on their lane.
  std::vector<Instruction> ForeseenGathers() const {
    std::vector<Instruction> gathers = gathers_;
    for (Instruction& each : gathers) {
      Foresee(each.reads);
      Foresee(each.writes);
    }
    return gathers;
  }

  // They read what SPECULATE made.
  std::vector<Instruction> NextForwards() const {
    std::vector<Instruction> forwards = first_;
    for (Instruction& each : forwards) {
      each.step_ahead = 1;
      Foresee(each.reads);
    }
    return forwards;
  }

  const Program& program_;
  Program frame_;                          // without instructions
  SlotId sums_{-1}, met_{-1};              // scalars: of the rank, and of all ranks
  std::map<SlotId, SlotId> foreseen_;      // by the true weights
  std::vector<Instruction> first_, rest_;  // what runs ahead, and all else
  Instruction optimizer_;
  std::vector<Instruction> gathers_;  // behind it; empty: replicas do not share the state
};

}  // namespace

bool GathersForeseen(const Instruction& instruction, const Program& program) {
  return instruction.op == Op::kGatherWeights &&
         program.slots[instruction.reads[0].value()].version == kForeseen;
}

absl::StatusOr<std::vector<Program>> RemoveBarrier(const std::vector<Program>& programs) {
  for (const Program& program : programs) {
    const std::string_view unknown = Unknown(program);
    if (unknown.empty()) continue;
    return absl::InvalidArgumentError(absl::StrCat("program of pp rank ", program.pp_rank.value(),
                                                   " ", std::string(unknown),
                                                   ", which needs the barrier of its step"));
  }
  const std::vector<Ahead> ahead = FindAhead(programs);
  std::vector<Program> steps;
  for (std::size_t rank = 0; rank < programs.size(); ++rank)
    steps.push_back(Rewriter(programs[rank], ahead[rank]).Step());
  return steps;
}

}  // namespace takt::program
