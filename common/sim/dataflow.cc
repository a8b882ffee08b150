// SPDX-License-Identifier: Apache-2.0
#include "common/sim/dataflow.h"

#include <algorithm>
#include <initializer_list>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/program/compute_part.h"
#include "common/sim/gradient.h"
#include "common/sim/layer_slots.h"
#include "common/sim/slot_contents.h"
#include "common/sim/vocabulary_flow.h"
#include "common/sim/weight_flow.h"

namespace takt::sim {
namespace {

using program::ComputePart;
using program::Direction;
using program::FindSlot;
using program::Instruction;
using program::Op;
using program::Program;
using program::SlotKind;

class Follower {
 public:
  explicit Follower(const Program& program)
      : program_(program),
        flushes_(!program::IsAsynchronous(program)),
        overlaps_(program::OverlapsSteps(program)),
        updates_each_microbatch_(program::UpdatesEachMicrobatch(program)),
        spreads_vocabulary_(program::SpreadsVocabulary(program)),
        vocabulary_(program),
        weight_flow_(program),
        slots_(program),
        contents_(program),
        gradients_(program.slots.size()) {
    for (const Instruction& instruction : program.body) Expect(instruction);
  }

  std::optional<Refusal> Run() {
    if (auto refusal = Follow(program_.prologue, "prologue: ")) return refusal;
    if (auto refusal = Follow(program_.body, "")) return refusal;
    return flushes_ && !overlaps_ ? std::nullopt : FollowNextStep();
  }

 private:
  // The effect of the body as a whole on gradients and losses.
  void Expect(const Instruction& instruction) {
    const auto runs_weight_grad = [&](StageId stage) {
      for (const SlotId slot : slots_.Of(stage).gradients) {
        int& expected = gradients_[slot.value()].expected;
        expected = updates_each_microbatch_ ? 1 : expected + 1;
      }
    };
    switch (instruction.op) {
      case Op::kForward:
        num_losses_expected_ += MakesLoss(instruction.stage) ? 1 : 0;
        return;
      case Op::kWeightGrad:
      case Op::kBackward:
        return runs_weight_grad(instruction.stage);
      case Op::kOverlap:
        num_losses_expected_ += MakesLoss(instruction.stage) ? 1 : 0;
        return runs_weight_grad(instruction.backward_stage);
      case Op::kReduceGrad:
        gradients_[instruction.reads[0].value()].needs_reduction = true;
        return;
      case Op::kReduceTied:
        for (const SlotId slot : instruction.reads) gradients_[slot.value()].needs_tying = true;
        return;
      case Op::kOptimizer:
        updates_weights_ = true;
        return;
      case Op::kGatherWeights:
      case Op::kUnshard:
        gathers_ = true;
        return;
      case Op::kVocabularyBackward:
      case Op::kRowsGrad:
        num_losses_expected_ += vocabulary_.MakesLoss(instruction) ? 1 : 0;
        for (const SlotId slot : instruction.writes) {
          if (At(slot).kind == SlotKind::kGradient) ++gradients_[slot.value()].expected;
        }
        return;
      default:
        return;
    }
  }

  std::optional<Refusal> Follow(const std::vector<Instruction>& list, std::string_view part) {
    for (std::size_t i = 0; i < list.size(); ++i) {
      const std::string problem = Step(list[i]);
      if (problem.empty()) continue;
      const int rank = program_.pp_rank.value();
      return Refusal{absl::StrCat("rank ", rank, " ", std::string(part),
                                  ToString(list[i], program_), " ", problem),
                     rank, part.empty() ? static_cast<std::int32_t>(i) : -1};
    }
    return std::nullopt;
  }

  // Follows the body again. It must leave what it left before, one step later.
  std::optional<Refusal> FollowNextStep() {
    const SlotContents after_first = contents_;
    const int updates_after_first = updates_;
    ++iteration_;
    if (!overlaps_) num_losses_ = 0;
    if (!updates_weights_) RestartGradients();
    if (auto refusal = Follow(program_.body, "")) return refusal;
    const auto slot = contents_.FirstNotOneStepAfter(after_first, updates_ - updates_after_first);
    if (!slot.has_value()) return std::nullopt;
    const int rank = program_.pp_rank.value();
    return Refusal{absl::StrCat("rank ", rank, " leaves slot ", slot->value(),
                                " in another state after its second step than after its first"),
                   rank};
  }

  // Applies the effect of `instruction` to the slots. Returns what is wrong with it, "" if nothing.
  std::string Step(const Instruction& instruction) {
    const int step = iteration_ + instruction.step_ahead;
    const Content message = {
        program_.lanes[instruction.lane.value()].direction == Direction::kActivation
            ? What::kActivation
            : What::kGradient,
        instruction.stage, instruction.microbatch, step};
    switch (instruction.op) {
      case Op::kLoad:
        contents_.Set(instruction.writes[0],
                      {What::kTokens, StageId(-1), instruction.microbatch, step});
        return "";
      case Op::kSend:
        return contents_.Holds(instruction.reads[0], message) ? ""
                                                              : "finds another message in its slot";
      case Op::kRecv:
        contents_.Set(instruction.writes[0], message);
        return "";
      case Op::kForward:
      case Op::kInputGrad:
      case Op::kBackward:
        return StepCompute(program::WholePart(instruction), step);
      case Op::kWeightGrad:
        return StepWeightGrad(instruction, step);
      case Op::kOverlap: {
        const program::OverlapParts parts = program::PartsOf(instruction, program_);
        const std::string problem = StepCompute(parts.forward, step);
        return problem.empty() ? StepCompute(parts.backward, iteration_) : problem;
      }
      default:
        if (!program::IsOfVocabulary(instruction.op)) return StepEnd(instruction);
        num_losses_ += vocabulary_.MakesLoss(instruction) ? 1 : 0;
        return vocabulary_.Step(instruction, step, contents_, gradients_);
    }
  }

  std::string StepWeightGrad(const Instruction& instruction, int step) {
    const StageId stage = instruction.stage;
    const std::vector<ComputePart> parts = program::MicrobatchParts(instruction, program_);
    for (const ComputePart& part : parts) {
      const std::string problem = FindsOther(part, step);
      if (!problem.empty()) return problem;
    }
    const LayerSlots::Stage& layers = slots_.Of(stage);
    const int updates = contents_.UpdatesOfWeights(instruction.reads);
    const std::string problem =
        CheckLayers(program::WholePart(instruction), layers, /*accumulates=*/true, updates);
    if (!problem.empty()) return problem;
    for (const ComputePart& part : parts) {
      if (updates != contents_.At(StashOf(part)).updates) return kMeetsOtherWeights;
      const SlotId recomputed = FindSlot(program_, part.reads, SlotKind::kRecomputed, stage);
      if (layers.recomputes && recomputed.value() < 0) {
        return "does not read what its I recomputed";
      }
      UseUp(part);
    }
    for (const SlotId slot : instruction.writes) ++gradients_[slot.value()].accumulated;
    return "";
  }

  std::string StepCompute(const ComputePart& part, int step) {
    const StageId stage = part.stage;
    const bool forward = part.op == Op::kForward;
    const LayerSlots::Stage& layers = slots_.Of(stage);
    const int updates = contents_.UpdatesOfWeights(part.reads);
    std::string problem = FindsOther(part, step);
    if (problem.empty()) problem = CheckLayers(part, layers, part.op == Op::kBackward, updates);
    if (!problem.empty()) return problem;
    const SlotId stash = forward ? SlotId(-1) : StashOf(part);
    if (!forward && updates != contents_.At(stash).updates) return kMeetsOtherWeights;
    if (layers.recomputes && part.op == Op::kInputGrad &&
        FindSlot(program_, part.writes, SlotKind::kRecomputed, stage).value() < 0) {
      return "recomputes and has no slot for it";
    }
    if (forward && MakesLoss(stage)) {
      if (!contents_.AreScalars(part.reads, {0}) || !contents_.AreScalars(part.writes, {0})) {
        return "leaves its loss elsewhere";
      }
      ++num_losses_;
    }
    for (const SlotId slot : part.writes) {
      Content made = {What::kNothing, stage, part.microbatch, step};
      switch (At(slot).kind) {
        case SlotKind::kOutput:
        case SlotKind::kInput:
          made.what = What::kActivation;
          break;
        case SlotKind::kInputGrad:
        case SlotKind::kOutputGrad:
          made.what = What::kGradient;
          break;
        case SlotKind::kStash:
          if (!forward && slot != stash) return "leaves its stash in another slot than it found";
          made.what = forward ? What::kForwardStash : What::kStash;
          made.updates = updates;
          break;
        case SlotKind::kRecomputed:
          made.what = What::kRecomputed;
          break;
        case SlotKind::kHeadInput:
          made.what = What::kHeadInput;
          made.stage = At(slot).stage;
          break;
        case SlotKind::kGradient:
          ++gradients_[slot.value()].accumulated;
          continue;
        default:
          continue;
      }
      contents_.Set(slot, made);
    }
    if (part.op == Op::kBackward) UseUp(part);
    return "";
  }

  // W and B end the life of what they read, so nothing may find it again.
  void UseUp(const ComputePart& part) {
    for (const SlotId slot : part.reads) {
      const SlotKind kind = At(slot).kind;
      if (kind == SlotKind::kStash || kind == SlotKind::kRecomputed) contents_.Set(slot, {});
    }
    last_backward_ = part.microbatch;
  }

  // Returns what is wrong with what the slots of a microbatch hold, "" if nothing is.
  std::string FindsOther(const ComputePart& part, int step) const {
    const int stage = part.stage.value();
    const auto holds = [&](SlotId slot, What what, int of_stage) {
      return contents_.Holds(slot, {what, StageId(of_stage), part.microbatch, step});
    };
    for (const SlotId slot : part.reads) {
      switch (At(slot).kind) {
        case SlotKind::kTokens: {
          // If there is a flush, one LOAD brings those of all microbatches.
          const MicrobatchId loaded = flushes_ ? MicrobatchId(-1) : part.microbatch;
          if (contents_.At(slot).what != What::kTokens) return "comes before LOAD";
          if (!contents_.Holds(slot, {What::kTokens, StageId(-1), loaded, step}))
            return "finds other tokens";
          break;
        }
        case SlotKind::kInput:
          if (holds(slot, What::kActivation, stage - 1)) break;
          return "finds another activation in its input slot";
        case SlotKind::kOutputGrad:
          if (holds(slot, What::kGradient, stage + 1)) break;
          return "finds another gradient in its slot";
        case SlotKind::kHeadGrad:
          if (holds(slot, What::kHeadGrad, stage + 1)) break;
          return "finds another gradient of the head in its slot";
        case SlotKind::kStash:
          if (holds(slot, part.op == Op::kWeightGrad ? What::kStash : What::kForwardStash, stage)) {
            break;
          }
          return "finds another stash in its slot";
        case SlotKind::kRecomputed:
          if (holds(slot, What::kRecomputed, stage)) break;
          return "finds in its slot what was recomputed for another";
        default:
          break;
      }
    }
    return "";
  }

  // Returns what is wrong with the weights and gradients that it touches, "" if nothing is. layers:
  // of its stage. updates: those that made the weights; -1: they differ in that.
  std::string CheckLayers(const ComputePart& part, const LayerSlots::Stage& layers,
                          bool accumulates, int updates) const {
    const SlotId first = FindSlot(program_, part.reads, SlotKind::kWeights, part.stage);
    if (!contents_.AreAll(layers.weights.at(At(first).version), SlotKind::kWeights, part.reads) ||
        (accumulates && (!contents_.AreAll(layers.gradients, SlotKind::kGradient, part.reads) ||
                         !contents_.AreAll(layers.gradients, SlotKind::kGradient, part.writes)))) {
      return "does not touch every layer of its stage once, in order";
    }
    if (updates >= 0) return "";
    return weight_flow_.frees() ? "finds no whole weights of its stage"
                                : "does not read every layer of its stage in one version";
  }

  // Reductions, norm, optimizer, gathers.
  std::string StepEnd(const Instruction& instruction) {
    const std::string problem = CheckGradients(instruction);
    if (!problem.empty()) return problem;
    switch (instruction.op) {
      case Op::kReduceGrad:
      case Op::kReduceTied:
        return Reduce(instruction);
      case Op::kNormPartial:
        return SumUp(instruction);
      case Op::kNormExchange:
        if (!contents_.AreScalars(instruction.reads, {Meeting()}))
          return "does not meet with what was moved";
        if (!contents_.Holds(instruction.reads[0], Sums(What::kPartialSums, instruction))) {
          return "comes before NORM_PARTIAL";
        }
        contents_.Set(instruction.writes[0], Sums(What::kSums, instruction));
        return "";
      case Op::kSpeculate:
        return Speculate(instruction);
      case Op::kOptimizer:
        return Update(instruction);
      case Op::kSnapshot:
        return Snapshot(instruction);
      case Op::kGatherWeights:
      case Op::kUnshard:
      case Op::kReshard:
        return weight_flow_.Step(instruction, contents_);
      default:
        return "";
    }
  }

  std::string CheckGradients(const Instruction& instruction) const {
    for (const SlotId slot : instruction.reads) {
      if (At(slot).kind != SlotKind::kGradient) continue;
      const Gradient& gradient = gradients_[slot.value()];
      if (gradient.accumulated > gradient.expected) return "finds more gradients than it applies";
      const std::string_view lack = gradient.LacksFor(instruction.op);
      if (lack.empty()) continue;
      return absl::StrCat("comes before the gradient of layer ", At(slot).index, " ",
                          std::string(lack));
    }
    return "";
  }

  std::string Reduce(const Instruction& instruction) {
    for (const SlotId slot : instruction.reads) {
      Gradient& gradient = gradients_[slot.value()];
      bool& done = instruction.op == Op::kReduceGrad ? gradient.is_reduced : gradient.is_tied;
      if (std::exchange(done, true)) return "sums a second time";
    }
    return "";
  }

  std::string SumUp(const Instruction& partial) {
    const bool moves = Meeting() == 0 ? contents_.AreScalars(partial.writes, {0})
                                      : contents_.AreScalars(partial.writes, {0, Meeting()});
    if (!contents_.AreScalars(partial.reads, {0}) || !moves) return "does not move the losses";
    for (const SlotId slot : partial.writes) contents_.Set(slot, Sums(What::kPartialSums, partial));
    const bool complete = num_losses_ == num_losses_expected_;
    if (overlaps_) num_losses_ = 0;  // those of the next step follow
    return complete ? "" : "comes before the losses of its step";
  }

  // Returns what an update leaves of weights.
  What Made() const { return gathers_ ? What::kShards : What::kWeights; }

  // Foresees the next update, of all stages or of the rows of the embedding.
  std::string Speculate(const Instruction& speculate) {
    const bool of_rows = slots_.IsOfRows(speculate.stage);
    if (!of_rows &&
        !contents_.Holds(FindSlot(program_, speculate.reads, SlotKind::kScalars, StageId(-1)),
                         Sums(What::kPartialSums, speculate))) {
      return "comes before NORM_PARTIAL";
    }
    const auto [gradients, weights, foreseen] = slots_.ForeseenOf(of_rows);
    if (!contents_.AreAll(gradients, SlotKind::kGradient, speculate.reads) ||
        !contents_.AreAll(weights, SlotKind::kWeights, speculate.reads) ||
        speculate.writes != foreseen || foreseen.size() != weights.size()) {
      return of_rows ? "does not foresee the update of its rows of the embedding once"
                     : "does not foresee the update of every layer once, in order";
    }
    for (const SlotId slot : speculate.writes)
      contents_.Set(slot, {.what = Made(), .updates = updates_ + 1});
    return "";
  }

  // Version v becomes version v+1.
  std::string Update(const Instruction& optimizer) {
    if (flushes_ &&
        !contents_.Holds(FindSlot(program_, optimizer.reads, SlotKind::kScalars, StageId(-1)),
                         Sums(What::kSums, optimizer))) {
      return "comes before NORM_EXCHANGE";
    }
    if (optimizer.microbatch.value() >= 0 && optimizer.microbatch != last_backward_) {
      return "does not come right after the backward whose gradient it applies";
    }
    if (!contents_.AreAll(slots_.gradients(), SlotKind::kGradient, optimizer.reads) ||
        (!flushes_ &&
         !contents_.AreAll(slots_.Weights(0, 0), SlotKind::kWeights, optimizer.reads)) ||
        (!weight_flow_.frees() && optimizer.writes != slots_.Weights(0))) {
      return "does not update every layer and version once, in order";
    }
    const std::string problem = weight_flow_.CheckUpdate(optimizer, contents_);
    if (!problem.empty()) return problem;
    ++updates_;
    for (const SlotId slot : optimizer.writes)
      contents_.Set(slot, {.what = Made(), .updates = std::max(0, updates_ - At(slot).version)});
    RestartGradients();
    return "";
  }

  std::string Snapshot(const Instruction& instruction) {
    if (instruction.reads != slots_.Weights(0, 0)) return "does not read the newest weights";
    if (instruction.writes != slots_.Weights(1))
      return "does not write every other version, in order";
    for (const SlotId slot : instruction.writes) {
      contents_.Set(slot, {.what = What::kWeights, .updates = updates_});
    }
    return "";
  }

  void RestartGradients() {
    for (Gradient& gradient : gradients_) {
      gradient.accumulated = 0;
      gradient.is_reduced = gradient.is_tied = false;
    }
  }

  SlotId StashOf(const ComputePart& part) const {
    return FindSlot(program_, part.reads, SlotKind::kStash, part.stage);
  }

  // Returns the version of the scalars that ranks exchange. Where steps overlap the next one's
  // losses are summed meanwhile.
  int Meeting() const { return flushes_ && !overlaps_ ? 0 : 1; }
  Content Sums(What what, const Instruction& instruction) const {
    return {.what = what,
            .microbatch = instruction.microbatch,
            .step = iteration_ + instruction.step_ahead};
  }
  bool MakesLoss(StageId stage) const {
    return stage.value() == program_.num_stages - 1 && !spreads_vocabulary_;
  }

  const program::Slot& At(SlotId slot) const { return program_.slots[slot.value()]; }

  static constexpr char kMeetsOtherWeights[] = "meets other weights than its F";

  const Program& program_;
  const bool flushes_;
  const bool overlaps_;  // the next step's forwards begin before OPT
  const bool updates_each_microbatch_;
  const bool spreads_vocabulary_;
  const VocabularyFlow vocabulary_;
  const WeightFlow weight_flow_;
  const LayerSlots slots_;
  bool updates_weights_ = false;  // the body has an OPT
  bool gathers_ = false;          // the OPT updates a shard of each layer
  int num_losses_expected_ = 0;   // the last stage's F in the body, or the root's T
  SlotContents contents_;
  std::vector<Gradient> gradients_;  // by slot
  MicrobatchId last_backward_{-1};
  int iteration_ = 0;
  int updates_ = 0;
  int num_losses_ = 0;  // of the step so far
};

}  // namespace

std::optional<Refusal> CheckDataflow(const Program& program) { return Follower(program).Run(); }

}  // namespace takt::sim
