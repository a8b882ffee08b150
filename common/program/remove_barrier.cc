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

// Returns the forwards before anything else is computed, with what brings them tokens, rows of the
// embedding and messages.
Ahead FirstForwards(const Program& program) {
  Ahead ahead(program.body.size(), false);
  for (std::size_t i = 0; i < ahead.size(); ++i) {
    const Instruction& each = program.body[i];
    if (IsCompute(each.op) && each.op != Op::kForward) break;
    ahead[i] = each.op == Op::kLoad || each.op == Op::kRows || each.op == Op::kForward ||
               PassesUp(program, each);
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

// Takes out what does not run ahead on all ranks that meet: messages of which one end alone does,
// and ROWS that do not do so on every rank. Returns whether there was any.
bool TakeOutIncomplete(const std::vector<Program>& programs, std::vector<Ahead>& ahead) {
  std::map<std::pair<StageId, MicrobatchId>, std::size_t> ends;  // rows have a stage of their own
  const auto for_each_end = [&](const auto& call) {
    for (std::size_t rank = 0; rank < programs.size(); ++rank) {
      for (std::size_t i = 0; i < ahead[rank].size(); ++i) {
        const Instruction& each = programs[rank].body[i];
        if (ahead[rank][i] && (IsMessage(each.op) || each.op == Op::kRows)) call(each, rank, i);
      }
    }
  };
  for_each_end([&](const Instruction& each, std::size_t, std::size_t) {
    ++ends[{each.stage, each.microbatch}];
  });
  bool any = false;
  for_each_end([&](const Instruction& each, std::size_t rank, std::size_t i) {
    const std::size_t all = each.op == Op::kRows ? programs.size() : 2;
    if (ends.at({each.stage, each.microbatch}) == all) return;
    ahead[rank][i] = false;
    any = true;
  });
  return any;
}

std::vector<Ahead> FindAhead(const std::vector<Program>& programs) {
  std::vector<Ahead> ahead;
  for (const Program& program : programs) ahead.push_back(FirstForwards(program));
  bool any = true;
  while (any) {
    any = TakeOutIncomplete(programs, ahead);
    for (std::size_t rank = 0; rank < programs.size(); ++rank)
      any |= TakeOutDependent(programs[rank], ahead[rank]);
  }
  return ahead;
}

// A prologue runs one instruction at a time. So tokens and rows, for which all ranks meet, come
// first. A receive comes right before what reads its message, behind the receives before it on its
// lane. Those that nothing reads come last.
std::vector<Instruction> InOrderOfUse(std::vector<Instruction> list) {
  std::ranges::stable_partition(
      list, [](const Instruction& each) { return each.op == Op::kLoad || each.op == Op::kRows; });
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
      if (IsOfRows(id) && slot.index != kEmbeddingRows) continue;  // forwards need no head
      slot.version = kForeseen;
      foreseen_[id] = Add(slot);
    }
    met_ = Add({.kind = SlotKind::kScalars, .index = 1});
    for (std::size_t i = 0; i < program.body.size(); ++i) {
      (ahead[i] ? first_ : rest_).push_back(program.body[i]);
      if (program.body[i].op == Op::kOptimizer) optimizer_ = program.body[i];
      if (program.body[i].op == Op::kGatherWeights) gathers_.push_back(program.body[i]);
    }
    last_of_rows_ = LastOfRows();
  }

  Program Step() const {
    Program step = frame_;
    step.prologue = program_.prologue;
    Append(InOrderOfUse(first_), step.prologue);
    for (std::size_t i = 0; i < rest_.size(); ++i) {
      Instruction each = rest_[i];
      if (each.op == Op::kOptimizer || each.op == Op::kGatherWeights) continue;
      if (each.op == Op::kWeightGrad && each.stage != StageId(0) && SpreadsVocabulary(program_))
        LeaveOutTokens(each.reads);
      // The next losses are summed while the ranks meet over these.
      if (each.op == Op::kNormPartial) each.writes.push_back(met_);
      if (each.op == Op::kNormExchange) each.reads = each.writes = {met_};
      const bool sums_up = each.op == Op::kNormPartial;
      step.body.push_back(std::move(each));
      const bool completes_rows = static_cast<std::ptrdiff_t>(i) == last_of_rows_;
      if (!sums_up && !completes_rows) continue;
      step.body.push_back(completes_rows ? SpeculateRows() : SpeculateStages());
      Append(ForeseenGathers(/*of_rows=*/completes_rows), step.body);
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

  bool IsOfRows(SlotId slot) const {
    return program_.slots[slot.value()].stage.value() == program_.num_stages;
  }

  // Returns where the last instruction is that adds to the gradients of rows; -1: there are none.
  std::ptrdiff_t LastOfRows() const {
    const auto adds = [this](const Instruction& each) {
      return std::ranges::any_of(each.writes, [this](SlotId slot) {
        return program_.slots[slot.value()].kind == SlotKind::kGradient && IsOfRows(slot);
      });
    };
    return std::ranges::find_if(rest_.rbegin(), rest_.rend(), adds).base() - rest_.begin() - 1;
  }

  // No stage has a table of words. So no W needs tokens, but that of the table of positions, which
  // restart with each document. The tokens of the next step can come meanwhile.
  void LeaveOutTokens(std::vector<SlotId>& reads) const {
    std::erase_if(reads, [this](SlotId slot) {
      return program_.slots[slot.value()].kind == SlotKind::kTokens;
    });
  }

  Instruction SpeculateStages() const {
    Instruction added;
    added.lane = optimizer_.lane;
    AddForesight(/*of_rows=*/false, added);
    return added;
  }

  // The forwards ahead need rows of all ranks. Their gradients are complete while a rank still
  // computes those of stages, so this does not wait for the compute lane.
  Instruction SpeculateRows() const {
    const auto lane = std::ranges::find(program_.lanes, LaneKind::kVocabulary, &Lane::kind);
    Instruction added;
    added.lane = LaneId(static_cast<std::int32_t>(lane - program_.lanes.begin()));
    added.stage = StageId(program_.num_stages);
    AddForesight(/*of_rows=*/true, added);
    return added;
  }

  // Adds what the update reads and writes, as far as it is of rows or not.
  void AddForesight(bool of_rows, Instruction& to) const {
    to.op = Op::kSpeculate;
    for (const SlotId slot : optimizer_.reads) {
      if (IsOfRows(slot) == of_rows) to.reads.push_back(slot);
    }
    for (const SlotId weights : optimizer_.writes) {
      const auto foreseen = foreseen_.find(weights);
      if (foreseen == foreseen_.end() || IsOfRows(weights) != of_rows) continue;
      to.reads.push_back(weights);
      to.writes.push_back(foreseen->second);
    }
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
  std::vector<Instruction> ForeseenGathers(bool of_rows) const {
    std::vector<Instruction> gathers;
    for (Instruction each : gathers_) {
      const SlotId weights = each.reads[0];
      if (!foreseen_.contains(weights) || IsOfRows(weights) != of_rows) continue;
      Foresee(each.reads);
      Foresee(each.writes);
      gathers.push_back(std::move(each));
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
  std::ptrdiff_t last_of_rows_ = -1;       // in `rest_`
  Instruction optimizer_;
  std::vector<Instruction> gathers_;  // behind it; empty: replicas do not share the state
};

}  // namespace

bool ForeseesRows(const Instruction& instruction) {
  return instruction.op == Op::kSpeculate && instruction.stage.value() >= 0;
}

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
