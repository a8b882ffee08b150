// SPDX-License-Identifier: Apache-2.0
#include "common/sim/dataflow.h"

#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace takt::sim {
namespace {

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
      : program_(program), contents_(program.slots.size()), accumulated_(program.slots.size(), 0) {}

  absl::Status Run() {
    for (const Instruction& instruction : program_.body) {
      const std::string problem = Step(instruction);
      if (problem.empty()) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          "rank ", program_.pp_rank.value(), " ", ToString(instruction, program_), " ", problem));
    }
    for (const auto& [stage, count] : forwards_) {
      if (count == program_.num_microbatches) continue;
      return absl::InvalidArgumentError(absl::StrCat("rank ", program_.pp_rank.value(), " runs ",
                                                     count, " forwards on stage ", stage.value(),
                                                     " of ", program_.num_microbatches));
    }
    for (std::size_t i = 0; i < program_.slots.size(); ++i) {
      if (program_.slots[i].kind != SlotKind::kGradient || IsComplete(SlotId(static_cast<int>(i))))
        continue;
      return absl::InvalidArgumentError(absl::StrCat(
          "rank ", program_.pp_rank.value(), " runs ", accumulated_[i], " backwards on stage ",
          program_.slots[i].stage.value(), " of ", program_.num_microbatches));
    }
    return absl::OkStatus();
  }

 private:
  // What is wrong with `instruction`, "" if nothing; its effect on the slots.
  std::string Step(const Instruction& instruction) {
    const StageId stage = instruction.stage;
    const MicrobatchId m = instruction.microbatch;
    switch (instruction.op) {
      case Op::kLoad:
        Set(instruction.writes[0], {What::kTokens});
        return "";
      case Op::kSend: {
        const What what = IsActivation(instruction) ? What::kActivation : What::kGradient;
        return Holds(instruction.reads[0], {what, stage, m}) ? ""
                                                             : "finds another message in its slot";
      }
      case Op::kRecv:
        Set(instruction.writes[0],
            {IsActivation(instruction) ? What::kActivation : What::kGradient, stage, m});
        return "";
      case Op::kForward:
      case Op::kInputGrad:
      case Op::kWeightGrad:
      case Op::kBackward:
        return StepCompute(instruction);
      case Op::kReduceGrad:
      case Op::kReduceTied:
      case Op::kNormPartial:
      case Op::kOptimizer:
        for (const SlotId slot : instruction.reads) {
          if (At(slot).kind == SlotKind::kGradient && !IsComplete(slot)) {
            return absl::StrCat("comes before the gradient of layer ", At(slot).index,
                                " is complete");
          }
        }
        return "";
      default:
        return "";
    }
  }

  std::string StepCompute(const Instruction& instruction) {
    const StageId stage = instruction.stage;
    const MicrobatchId m = instruction.microbatch;
    const bool forward = instruction.op == Op::kForward;
    for (const SlotId slot : instruction.reads) {
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
      const What expected = instruction.op == Op::kWeightGrad ? What::kStash : What::kForwardStash;
      if (kind == SlotKind::kStash && !Holds(slot, {expected, stage, m})) {
        return "finds another stash in its slot";
      }
    }
    if (forward) ++forwards_[stage];
    const bool consumes_stash = instruction.op == Op::kBackward;
    for (const SlotId slot : instruction.writes) {
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
          Set(slot, consumes_stash
                        ? Content{}
                        : Content{forward ? What::kForwardStash : What::kStash, stage, m});
          break;
        case SlotKind::kGradient:
          ++accumulated_[slot.value()];
          break;
        default:
          break;
      }
    }
    // W takes the stash away without listing it as written: nothing may use it again.
    if (instruction.op == Op::kWeightGrad) {
      Set(FindSlot(program_, instruction.reads, SlotKind::kStash, stage), {});
    }
    return "";
  }

  const program::Slot& At(SlotId slot) const { return program_.slots[slot.value()]; }
  void Set(SlotId slot, Content content) { contents_[slot.value()] = content; }
  bool Holds(SlotId slot, Content content) const { return contents_[slot.value()] == content; }
  bool IsComplete(SlotId gradient) const {
    return accumulated_[gradient.value()] == program_.num_microbatches;
  }
  bool IsActivation(const Instruction& instruction) const {
    return program_.lanes[instruction.lane.value()].direction == program::Direction::kActivation;
  }

  const Program& program_;
  std::vector<Content> contents_;             // by slot
  std::vector<std::int32_t> accumulated_;     // by slot, of gradients: how many microbatches
  std::map<StageId, std::int32_t> forwards_;  // by stage
};

}  // namespace

absl::Status CheckDataflow(const Program& program) { return Follower(program).Run(); }

}  // namespace takt::sim
