// SPDX-License-Identifier: Apache-2.0
#include "common/sim/contributions.h"

#include <algorithm>
#include <array>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"

namespace takt::sim {
namespace {

using program::Instruction;
using program::Op;
using program::Program;
using program::Slot;
using program::SlotKind;

class Count {
 public:
  Count(const std::vector<Program>& programs, const ExpectedSums& expected)
      : programs_(programs), expected_(expected) {}

  std::optional<Refusal> Run() {
    if (auto refusal = CheckPasses()) return refusal;
    if (auto refusal = CheckVocabulary()) return refusal;
    if (auto refusal = CheckEnds()) return refusal;
    if (auto refusal = CheckSums()) return refusal;
    if (auto refusal = CheckGathers()) return refusal;
    return CheckNorm();
  }

 private:
  // Counts how often one (stage, microbatch) is run: F; I or B; W or B.
  struct Passes {
    std::array<std::uint8_t, 3> times = {};
  };
  static constexpr std::string_view kPassNames[] = {"F", "I or B", "W or B"};

  Refusal At(const Program& program, std::size_t i, std::string_view what) const {
    const int rank = program.pp_rank.value();
    return {absl::StrCat("rank ", rank, " ", ToString(program.body[i], program), " ",
                         std::string(what)),
            rank, static_cast<std::int32_t>(i)};
  }
  static Refusal On(const Program& program, std::string_view what) {
    const int rank = program.pp_rank.value();
    return {absl::StrCat("rank ", rank, " ", std::string(what)), rank};
  }

  // False: one of these passes runs for the second time.
  bool Add(StageId stage, MicrobatchId m, std::array<bool, 3> runs) {
    Passes& passes =
        passes_[static_cast<std::size_t>(stage.value()) * programs_[0].num_microbatches +
                m.value()];
    bool ok = true;
    for (std::size_t pass = 0; pass < runs.size(); ++pass) {
      if (runs[pass]) ok &= ++passes.times[pass] == 1;
    }
    return ok;
  }

  bool AddInstruction(const Instruction& instruction) {
    switch (instruction.op) {
      case Op::kForward:
        return Add(instruction.stage, instruction.microbatch, {true, false, false});
      case Op::kInputGrad:
        return Add(instruction.stage, instruction.microbatch, {false, true, false});
      case Op::kWeightGrad: {
        bool ok = true;
        for (std::int32_t i = 0; i < instruction.num_microbatches; ++i) {
          ok &= Add(instruction.stage, MicrobatchId(instruction.microbatch.value() + i),
                    {false, false, true});
        }
        return ok;
      }
      case Op::kBackward:
        return Add(instruction.stage, instruction.microbatch, {false, true, true});
      case Op::kOverlap:
        return Add(instruction.stage, instruction.microbatch, {true, false, false}) &&
               Add(instruction.backward_stage, instruction.backward_microbatch,
                   {false, true, true});
      default:
        return true;
    }
  }

  // Programs that hold none only go forward.
  bool HoldGradients() const {
    return std::any_of(programs_.begin(), programs_.end(), [](const Program& program) {
      return std::any_of(program.slots.begin(), program.slots.end(),
                         [](const Slot& slot) { return slot.kind == SlotKind::kGradient; });
    });
  }

  std::optional<Refusal> CheckPasses() {
    const int num_microbatches = programs_[0].num_microbatches;
    const std::size_t cells = static_cast<std::size_t>(programs_[0].num_stages) * num_microbatches;
    std::size_t instructions = 0;
    for (const Program& program : programs_) instructions += program.body.size();
    if (cells > 2 * instructions) {  // an O runs two; refuse before memory is spent
      return Refusal{absl::StrCat("the ranks have ", instructions, " instructions for ",
                                  programs_[0].num_stages, " stages of ", num_microbatches,
                                  " microbatches")};
    }
    passes_.resize(cells);
    for (const Program& program : programs_) {
      for (std::size_t i = 0; i < program.body.size(); ++i) {
        if (AddInstruction(program.body[i])) continue;
        return At(program, i, "runs a stage's microbatch a second time");
      }
    }
    const bool trains = HoldGradients();
    const bool needed[] = {true, trains, trains};
    for (std::size_t cell = 0; cell < passes_.size(); ++cell) {
      for (std::size_t pass = 0; pass < std::size(needed); ++pass) {
        if (passes_[cell].times[pass] == (needed[pass] ? 1 : 0)) continue;
        return Refusal{absl::StrCat("no rank runs ", std::string(kPassNames[pass]), " of stage ",
                                    cell / num_microbatches, " and microbatch ",
                                    cell % num_microbatches)};
      }
    }
    return std::nullopt;
  }

  // If the vocabulary is spread, every rank has an S, a T and each meeting of every microbatch
  // once, or what remains of these without gradients.
  std::optional<Refusal> CheckVocabulary() const {
    const bool spreads = program::SpreadsVocabulary(programs_[0]);
    const bool trains = HoldGradients();
    for (const Program& program : programs_) {
      if (program::SpreadsVocabulary(program) != spreads) {
        return On(program, "does not spread the vocabulary as rank 0 does");
      }
      if (!spreads) continue;
      if (program.mirror.value() >= 0 || program::IsAsynchronous(program)) {
        return On(program, "spreads the vocabulary without a flush, or with two copies of weights");
      }
      for (const Op op : {Op::kRows, Op::kShare, Op::kVocabularyForward, Op::kGather,
                          Op::kVocabularyBackward, Op::kReturn, Op::kRowsGrad, Op::kLoss}) {
        if (auto refusal = CheckEachMicrobatch(program, op, IsNeeded(program, op, trains))) {
          return refusal;
        }
      }
    }
    return std::nullopt;
  }

  static bool IsNeeded(const Program& program, Op op, bool trains) {
    if (op == Op::kLoss) {
      return !trains && HeldStages(program).contains(StageId(program.num_stages - 1));
    }
    const bool backward = op == Op::kVocabularyBackward || op == Op::kReturn || op == Op::kRowsGrad;
    return trains || !backward;
  }

  // The rank has one instruction of this op for each microbatch, or none at all.
  std::optional<Refusal> CheckEachMicrobatch(const Program& program, Op op, bool needed) const {
    const std::string name(Name(op));
    const int times = TimesOf(program, op);
    const int num_needed = needed ? program.num_microbatches : 0;
    if (times != num_needed) {
      return On(program, absl::StrCat("has ", times, " ", name, ", must have ", num_needed));
    }
    if (!needed) return std::nullopt;
    std::vector<bool> seen(static_cast<std::size_t>(program.num_microbatches), false);
    for (std::size_t i = 0; i < program.body.size(); ++i) {
      if (program.body[i].op != op) continue;
      const int m = program.body[i].microbatch.value();
      if (seen[m]) return At(program, i, "comes a second time");
      seen[m] = true;
    }
    return std::nullopt;
  }

  int TimesOf(const Program& program, Op op) const {
    return static_cast<int>(
        std::count_if(program.body.begin(), program.body.end(),
                      [op](const Instruction& instruction) { return instruction.op == op; }));
  }
  bool AnyHas(Op op) const {
    return std::any_of(programs_.begin(), programs_.end(),
                       [&](const Program& program) { return TimesOf(program, op) > 0; });
  }

  // LOAD comes at most once. Norm, exchange and optimizer, or the exchange of a validation, come
  // once on all ranks or nowhere. Without a flush there is a LOAD, and may be an OPT, for each
  // microbatch.
  std::optional<Refusal> CheckEnds() const {
    const bool optimizes =
        AnyHas(Op::kNormPartial) || AnyHas(Op::kNormExchange) || AnyHas(Op::kOptimizer);
    const bool each =
        std::any_of(programs_.begin(), programs_.end(), program::UpdatesEachMicrobatch);
    const int updates = each ? programs_[0].num_microbatches : 1;
    const int foresights = program::SpreadsVocabulary(programs_[0]) ? 2 : 1;  // one is of rows
    const std::pair<Op, int> everywhere[] = {
        {Op::kNormPartial, optimizes ? 1 : 0},
        {Op::kNormExchange, optimizes ? 1 : 0},
        {Op::kOptimizer, optimizes ? updates : 0},
        {Op::kSpeculate, AnyHas(Op::kSpeculate) ? foresights : 0},
        {Op::kEval, AnyHas(Op::kEval) ? 1 : 0}};
    for (const Program& program : programs_) {
      const int loads = program::IsAsynchronous(program) ? program.num_microbatches : 1;
      if (TimesOf(program, Op::kLoad) > loads) {
        return On(program,
                  absl::StrCat("loads more than ", loads == 1 ? "once" : "each microbatch"));
      }
      for (const auto& [op, needed] : everywhere) {
        const int times = TimesOf(program, op);
        if (times == needed) continue;
        return On(program,
                  absl::StrCat("has ", times, " ", std::string(Name(op)), "; every rank has ",
                               needed == 1 ? "one" : absl::StrCat(needed), " where any has"));
      }
    }
    return std::nullopt;
  }

  // Returns how often an instruction of this op reads each gradient of the rank.
  std::vector<int> TimesRead(const Program& program, Op op) const {
    std::vector<int> times(program.slots.size(), 0);
    for (const Instruction& instruction : program.body) {
      if (instruction.op != op) continue;
      for (const SlotId slot : instruction.reads) ++times[slot.value()];
    }
    return times;
  }

  // Returns whether a gradient is of a rank's rows of the vocabulary, which no other rank has.
  bool IsOfRows(const Slot& slot) const { return slot.stage.value() == programs_[0].num_stages; }

  // Returns whether a gradient is one of the two uses of the embedding. ends: the first and last
  // layer of each stage.
  bool IsOfEmbedding(const Slot& slot, const std::map<StageId, std::pair<int, int>>& ends) const {
    if (program::SpreadsVocabulary(programs_[0])) return IsOfRows(slot);
    const StageId last(programs_[0].num_stages - 1);
    return (slot.stage == StageId(0) && slot.index == ends.at(StageId(0)).first) ||
           (slot.stage == last && slot.index == ends.at(last).second);
  }

  std::optional<Refusal> CheckSums() const {
    std::map<int, int> holders;                   // by layer
    std::map<StageId, std::pair<int, int>> ends;  // first and last layer by stage
    for (const Program& program : programs_) {
      for (const Slot& slot : program.slots) {
        if (slot.kind != SlotKind::kGradient || IsOfRows(slot)) continue;
        ++holders[slot.index];
        auto& [first, last] = ends.try_emplace(slot.stage, slot.index, slot.index).first->second;
        first = std::min(first, slot.index);
        last = std::max(last, slot.index);
      }
    }
    const bool reduces = expected_.gradients.value_or(AnyHas(Op::kReduceGrad));
    const bool ties = expected_.tied_embeddings.value_or(AnyHas(Op::kReduceTied));
    const bool optimizes = AnyHas(Op::kOptimizer);
    for (const Program& program : programs_) {
      const std::vector<int> reductions = TimesRead(program, Op::kReduceGrad);
      const std::vector<int> tied = TimesRead(program, Op::kReduceTied);
      for (std::size_t i = 0; i < program.slots.size(); ++i) {
        const Slot& slot = program.slots[i];
        if (slot.kind != SlotKind::kGradient) continue;
        const bool is_tied = ties && IsOfEmbedding(slot, ends);
        const bool has_copies = !IsOfRows(slot) && holders[slot.index] > 1;
        const std::pair<Op, bool> sums[] = {{Op::kReduceGrad, reduces || (optimizes && has_copies)},
                                            {Op::kReduceTied, is_tied}};
        for (const auto& [op, needed] : sums) {
          const int times = op == Op::kReduceGrad ? reductions[i] : tied[i];
          if (times == (needed ? 1 : 0)) continue;
          return On(program,
                    absl::StrCat("has the gradient of layer ", slot.index, " in ", times, " ",
                                 std::string(Name(op)), ", must be in ", needed ? 1 : 0));
        }
      }
    }
    return std::nullopt;
  }

  // Where replicas share the optimizer's state, every rank gathers each of its weights once.
  std::optional<Refusal> CheckGathers() const {
    const int needed = AnyHas(Op::kGatherWeights) ? 1 : 0;
    for (const Program& program : programs_) {
      const std::vector<int> times = TimesRead(program, Op::kGatherWeights);
      for (std::size_t i = 0; i < program.slots.size(); ++i) {
        const Slot& slot = program.slots[i];
        if (slot.kind != SlotKind::kWeights || times[i] == needed) continue;
        return On(program, absl::StrCat("has the weights of layer ", slot.index, " in ", times[i],
                                        " GATHER_WEIGHTS, must be in ", needed));
      }
    }
    return std::nullopt;
  }

  // The norm counts every layer once over all ranks, or, where replicas share the optimizer's
  // state, once on every rank that has shards of it. Without a flush there is no norm.
  std::optional<Refusal> CheckNorm() const {
    const bool flushes = std::none_of(programs_.begin(), programs_.end(), program::IsAsynchronous);
    if (!AnyHas(Op::kOptimizer) || !flushes) return std::nullopt;
    const bool shards = AnyHas(Op::kGatherWeights) || AnyHas(Op::kUnshard);
    std::map<int, int> counted;  // by layer
    for (const Program& program : programs_) {
      const std::vector<int> in_norm = TimesRead(program, Op::kNormPartial);
      for (std::size_t i = 0; i < program.slots.size(); ++i) {
        const Slot& slot = program.slots[i];
        if (slot.kind != SlotKind::kGradient) continue;
        if (!IsOfRows(slot) && !shards) {
          counted[slot.index] += in_norm[i];
        } else if (in_norm[i] != 1) {
          return On(program,
                    absl::StrCat("counts its ",
                                 IsOfRows(slot) ? "rows" : absl::StrCat("layer ", slot.index), " ",
                                 in_norm[i], " times in the norm, must be once"));
        }
      }
    }
    for (const auto& [layer, times] : counted) {
      if (times == 1) continue;
      return Refusal{absl::StrCat("layer ", layer, " is counted ", times,
                                  " times in the norm over all ranks, must be once")};
    }
    return std::nullopt;
  }

  const std::vector<Program>& programs_;
  const ExpectedSums& expected_;
  std::vector<Passes> passes_;  // by stage, microbatch
};

}  // namespace

std::optional<Refusal> CheckContributions(const std::vector<Program>& programs,
                                          const ExpectedSums& expected) {
  return Count(programs, expected).Run();
}

}  // namespace takt::sim
