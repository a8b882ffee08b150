// SPDX-License-Identifier: Apache-2.0
#include "common/sim/dataflow.h"

#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/program/compute_part.h"
#include "common/sim/gradient.h"

namespace takt::sim {
namespace {

using program::ComputePart;
using program::Direction;
using program::FindSlot;
using program::Instruction;
using program::Op;
using program::Program;
using program::SlotKind;

enum class What : std::uint8_t {
  kNothing,
  kTokens,
  kActivation,    // output of `stage`
  kGradient,      // gradient of the input of `stage`
  kForwardStash,  // left by F of `stage`
  kStash,         // left by I of `stage`
  kRecomputed,    // by I of `stage`
  kPartialNorms,  // of this rank
  kNorms,         // of all ranks
};

struct Content {
  What what = What::kNothing;
  StageId stage;
  MicrobatchId microbatch;

  bool operator==(const Content&) const = default;
};

class Follower {
 public:
  explicit Follower(const Program& program)
      : program_(program), contents_(program.slots.size()), gradients_(program.slots.size()) {
    for (std::size_t i = 0; i < program.slots.size(); ++i) {
      const program::Slot& slot = program.slots[i];
      if (slot.kind == SlotKind::kWeights) layers_[slot.stage].weights.push_back(SlotId(i));
      if (slot.kind == SlotKind::kGradient) layers_[slot.stage].gradients.push_back(SlotId(i));
      layers_[slot.stage].recomputes |= slot.kind == SlotKind::kRecomputed;
    }
    for (const Instruction& instruction : program.body) Expect(instruction);
  }

  std::optional<Refusal> Run() {
    for (std::size_t i = 0; i < program_.body.size(); ++i) {
      const Instruction& instruction = program_.body[i];
      const std::string problem = Step(instruction);
      if (problem.empty()) continue;
      const int rank = program_.pp_rank.value();
      return Refusal{
          absl::StrCat("rank ", rank, " ", ToString(instruction, program_), " ", problem), rank,
          static_cast<std::int32_t>(i)};
    }
    return std::nullopt;
  }

 private:
  struct Layers {  // of a stage
    std::vector<SlotId> weights, gradients;
    bool recomputes = false;  // from I to W; a B needs no slot for it
  };

  // What the list as a whole does to gradients.
  void Expect(const Instruction& instruction) {
    const auto runs_weight_grad = [&](StageId stage) {
      for (const SlotId slot : layers_[stage].gradients) ++gradients_[slot.value()].expected;
    };
    switch (instruction.op) {
      case Op::kWeightGrad:
      case Op::kBackward:
        return runs_weight_grad(instruction.stage);
      case Op::kOverlap:
        return runs_weight_grad(instruction.backward_stage);
      case Op::kReduceGrad:
        gradients_[instruction.reads[0].value()].needs_reduction = true;
        return;
      case Op::kReduceTied:
        for (const SlotId slot : instruction.reads) gradients_[slot.value()].needs_tying = true;
        return;
      default:
        return;
    }
  }

  // What is wrong with `instruction`, "" if nothing; its effect on the slots.
  std::string Step(const Instruction& instruction) {
    const Content message = {
        program_.lanes[instruction.lane.value()].direction == Direction::kActivation
            ? What::kActivation
            : What::kGradient,
        instruction.stage, instruction.microbatch};
    switch (instruction.op) {
      case Op::kLoad:
        Set(instruction.writes[0], {What::kTokens});
        return "";
      case Op::kSend:
        return Holds(instruction.reads[0], message) ? "" : "finds another message in its slot";
      case Op::kRecv:
        Set(instruction.writes[0], message);
        return "";
      case Op::kForward:
      case Op::kInputGrad:
      case Op::kBackward:
        return StepCompute(program::WholePart(instruction));
      case Op::kWeightGrad:
        return StepWeightGrad(instruction);
      case Op::kOverlap: {
        const program::OverlapParts parts = program::PartsOf(instruction, program_);
        const std::string problem = StepCompute(parts.forward);
        return problem.empty() ? StepCompute(parts.backward) : problem;
      }
      default:
        return StepEnd(instruction);
    }
  }

  std::string StepWeightGrad(const Instruction& instruction) {
    const StageId stage = instruction.stage;
    const std::vector<ComputePart> parts = program::MicrobatchParts(instruction, program_);
    for (const ComputePart& part : parts) {
      const std::string problem = FindsOther(part);
      if (!problem.empty()) return problem;
    }
    if (!TouchesLayers(instruction.stage, instruction.reads, instruction.writes, true)) {
      return std::string(kMissesLayers);
    }
    for (const ComputePart& part : parts) {
      const SlotId recomputed = FindSlot(program_, part.reads, SlotKind::kRecomputed, stage);
      if (layers_[stage].recomputes && recomputed.value() < 0) {
        return "does not read what its I recomputed";
      }
      UseUp(part);
    }
    for (const SlotId slot : instruction.writes) ++gradients_[slot.value()].accumulated;
    return "";
  }

  std::string StepCompute(const ComputePart& part) {
    const StageId stage = part.stage;
    const MicrobatchId m = part.microbatch;
    const std::string problem = FindsOther(part);
    if (!problem.empty()) return problem;
    if (!TouchesLayers(stage, part.reads, part.writes, part.op == Op::kBackward)) {
      return std::string(kMissesLayers);
    }
    if (layers_[stage].recomputes && part.op == Op::kInputGrad &&
        FindSlot(program_, part.writes, SlotKind::kRecomputed, stage).value() < 0) {
      return "recomputes and has no slot for it";
    }
    const bool forward = part.op == Op::kForward;
    const SlotId stash = FindSlot(program_, part.reads, SlotKind::kStash, stage);
    for (const SlotId slot : part.writes) {
      switch (At(slot).kind) {
        case SlotKind::kOutput:
        case SlotKind::kInput:
          Set(slot, {What::kActivation, stage, m});
          break;
        case SlotKind::kInputGrad:
        case SlotKind::kOutputGrad:
          Set(slot, {What::kGradient, stage, m});
          break;
        case SlotKind::kStash:
          if (!forward && slot != stash) return "leaves its stash in another slot than it found";
          Set(slot, {forward ? What::kForwardStash : What::kStash, stage, m});
          break;
        case SlotKind::kRecomputed:
          Set(slot, {What::kRecomputed, stage, m});
          break;
        case SlotKind::kGradient:
          ++gradients_[slot.value()].accumulated;
          break;
        default:
          break;
      }
    }
    if (part.op == Op::kBackward) UseUp(part);
    return "";
  }

  // Nothing may find again what W or B has read.
  void UseUp(const ComputePart& part) {
    for (const SlotId slot : part.reads) {
      const SlotKind kind = At(slot).kind;
      if (kind == SlotKind::kStash || kind == SlotKind::kRecomputed) Set(slot, {});
    }
  }

  // What is wrong with what the slots of a microbatch hold, "" if nothing.
  std::string FindsOther(const ComputePart& part) const {
    const StageId stage = part.stage;
    const MicrobatchId m = part.microbatch;
    for (const SlotId slot : part.reads) {
      const SlotKind kind = At(slot).kind;
      if (kind == SlotKind::kTokens && !Holds(slot, {What::kTokens})) return "comes before LOAD";
      if (kind == SlotKind::kInput &&
          !Holds(slot, {What::kActivation, StageId(stage.value() - 1), m})) {
        return "finds another activation in its input slot";
      }
      if (kind == SlotKind::kOutputGrad &&
          !Holds(slot, {What::kGradient, StageId(stage.value() + 1), m})) {
        return "finds another gradient in its slot";
      }
      const What expected = part.op == Op::kWeightGrad ? What::kStash : What::kForwardStash;
      if (kind == SlotKind::kStash && !Holds(slot, {expected, stage, m})) {
        return "finds another stash in its slot";
      }
      if (kind == SlotKind::kRecomputed && !Holds(slot, {What::kRecomputed, stage, m})) {
        return "finds in its slot what was recomputed for another";
      }
    }
    return "";
  }

  static constexpr std::string_view kMissesLayers =
      "does not touch every layer of its stage once, in order";
  bool TouchesLayers(StageId stage, std::span<const SlotId> reads, std::span<const SlotId> writes,
                     bool accumulates) {
    const Layers& layers = layers_[stage];
    return AreAll(layers.weights, SlotKind::kWeights, reads) &&
           (!accumulates || (AreAll(layers.gradients, SlotKind::kGradient, reads) &&
                             AreAll(layers.gradients, SlotKind::kGradient, writes)));
  }

  // Reductions, norm, optimizer.
  std::string StepEnd(const Instruction& instruction) {
    const Op op = instruction.op;
    for (const SlotId slot : instruction.reads) {
      if (At(slot).kind != SlotKind::kGradient) continue;
      Gradient& gradient = gradients_[slot.value()];
      const std::string_view lack = gradient.LacksFor(op);
      if (!lack.empty()) {
        return absl::StrCat("comes before the gradient of layer ", At(slot).index, " ",
                            std::string(lack));
      }
      const bool again = (op == Op::kReduceGrad && gradient.is_reduced) ||
                         (op == Op::kReduceTied && gradient.is_tied);
      if (again) return "sums a second time";
      gradient.is_reduced |= op == Op::kReduceGrad;
      gradient.is_tied |= op == Op::kReduceTied;
    }
    if (op == Op::kNormPartial) Set(instruction.writes[0], {What::kPartialNorms});
    if (op == Op::kNormExchange) {
      if (!Holds(instruction.reads[0], {What::kPartialNorms})) return "comes before NORM_PARTIAL";
      Set(instruction.writes[0], {What::kNorms});
    }
    if (op == Op::kOptimizer) {
      if (!Holds(FindSlot(program_, instruction.reads, SlotKind::kScalars, StageId(-1)),
                 {What::kNorms})) {
        return "comes before NORM_EXCHANGE";
      }
    }
    return "";
  }

  // Whether the slots of this kind in `list` are `all`, in order.
  bool AreAll(const std::vector<SlotId>& all, SlotKind kind, std::span<const SlotId> list) const {
    std::size_t found = 0;
    for (const SlotId slot : list) {
      if (At(slot).kind != kind) continue;
      if (found == all.size() || all[found] != slot) return false;
      ++found;
    }
    return found == all.size();
  }

  const program::Slot& At(SlotId slot) const { return program_.slots[slot.value()]; }
  void Set(SlotId slot, Content content) { contents_[slot.value()] = content; }
  bool Holds(SlotId slot, Content content) const {
    return slot.value() >= 0 && contents_[slot.value()] == content;
  }

  const Program& program_;
  std::map<StageId, Layers> layers_;
  std::vector<Content> contents_;    // by slot
  std::vector<Gradient> gradients_;  // by slot
};

}  // namespace

std::optional<Refusal> CheckDataflow(const Program& program) { return Follower(program).Run(); }

}  // namespace takt::sim
