// SPDX-License-Identifier: Apache-2.0
#include "common/sim/running_dataflow.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
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
  kActivation,  // output of `stage`
  kGradient,    // gradient of the input of `stage`
  kStash,       // left by F of `stage`
  kWeights,
  kLosses,  // of this rank
  kLoss,    // of all ranks
};

struct Content {
  What what = What::kNothing;
  int stage = -1, microbatch = -1, step = 0;
  int updates = 0;  // that made the weights, or those that the stash was made with

  bool operator==(const Content&) const = default;
};

class Follower {
 public:
  explicit Follower(const Program& program)
      : program_(program), contents_(program.slots.size()), gradients_(program.slots.size()) {
    int num_updates = 0, num_backwards = 0;
    for (const Instruction& instruction : program.body) {
      num_updates += instruction.op == Op::kOptimizer ? 1 : 0;
      num_backwards += instruction.op == Op::kBackward ? 1 : 0;
      if (instruction.op == Op::kReduceGrad) {
        gradients_[instruction.reads[0].value()].needs_reduction = true;
      }
      if (instruction.op != Op::kReduceTied) continue;
      for (const SlotId slot : instruction.reads) gradients_[slot.value()].needs_tying = true;
    }
    for (std::size_t i = 0; i < program.slots.size(); ++i) {
      const program::Slot& slot = program.slots[i];
      if (slot.kind == SlotKind::kWeights) {
        weights_[slot.version].push_back(SlotId(static_cast<int>(i)));
        if (slot.version == 0) contents_[i] = {.what = What::kWeights};
      }
      if (slot.kind == SlotKind::kGradient) all_gradients_.push_back(SlotId(static_cast<int>(i)));
      gradients_[i].expected = num_updates > 0 ? num_backwards / num_updates : num_backwards;
    }
  }

  std::optional<Refusal> Run() {
    if (auto refusal = Follow(program_.prologue, "prologue")) return refusal;
    if (auto refusal = Follow(program_.body, "")) return refusal;
    const std::vector<Content> after_first = contents_;
    const int updates_after_first = updates_;
    ++iteration_;
    if (auto refusal = Follow(program_.body, "")) return refusal;
    for (std::size_t i = 0; i < contents_.size(); ++i) {
      Content expected = after_first[i];
      if (expected.what != What::kNothing) {
        expected.step += StepsBetween(expected.what);
        expected.updates += HasUpdates(expected.what) ? updates_ - updates_after_first : 0;
      }
      if (contents_[i] == expected) continue;
      const int rank = program_.pp_rank.value();
      return Refusal{absl::StrCat("rank ", rank, " leaves slot ", i,
                                  " in another state after its second step than after its first"),
                     rank};
    }
    return std::nullopt;
  }

 private:
  static int StepsBetween(What what) { return what == What::kWeights ? 0 : 1; }
  static bool HasUpdates(What what) { return what == What::kWeights || what == What::kStash; }

  std::optional<Refusal> Follow(const std::vector<Instruction>& list, std::string_view name) {
    for (std::size_t i = 0; i < list.size(); ++i) {
      const std::string problem = Step(list[i]);
      if (problem.empty()) continue;
      const int rank = program_.pp_rank.value();
      const bool in_body = name.empty();
      return Refusal{
          absl::StrCat("rank ", rank, " ", in_body ? "" : absl::StrCat(std::string(name), ": "),
                       ToString(list[i], program_), " ", problem),
          rank, in_body ? static_cast<std::int32_t>(i) : -1};
    }
    return std::nullopt;
  }

  // What is wrong with `instruction`, "" if nothing; its effect on the slots.
  std::string Step(const Instruction& instruction) {
    const bool forward =
        program_.lanes[instruction.lane.value()].direction == Direction::kActivation;
    const Content message =
        Of(forward ? What::kActivation : What::kGradient, instruction.stage.value(), instruction);
    switch (instruction.op) {
      case Op::kLoad:
        Set(instruction.writes[0], Of(What::kTokens, -1, instruction));
        return "";
      case Op::kSend:
        return Holds(instruction.reads[0], message) ? "" : "finds another message in its slot";
      case Op::kRecv:
        Set(instruction.writes[0], message);
        return "";
      case Op::kForward:
        return Forward(instruction);
      case Op::kBackward:
        return Backward(instruction);
      case Op::kSnapshot:
        return Snapshot(instruction);
      case Op::kOptimizer:
        return Update(instruction);
      case Op::kReduceGrad:
      case Op::kReduceTied:
        return Reduce(instruction);
      case Op::kNormPartial:
        if (!AreScalars(instruction.reads, {0}) || !AreScalars(instruction.writes, {0, 1})) {
          return "does not move the losses";
        }
        for (const SlotId slot : instruction.writes) Set(slot, Of(What::kLosses, -1, instruction));
        return TellsAllLosses() ? "" : "comes before the losses of its step";
      case Op::kNormExchange:
        if (!AreScalars(instruction.reads, {1})) return "does not meet with what was moved";
        if (!Holds(instruction.reads[0], Of(What::kLosses, -1, instruction))) {
          return "comes before NORM_PARTIAL";
        }
        Set(instruction.writes[0], Of(What::kLoss, -1, instruction));
        return "";
      default:
        return "is no part of a program without a flush";
    }
  }

  std::string Forward(const Instruction& instruction) {
    const std::string problem = CheckInputs(instruction);
    if (!problem.empty()) return problem;
    const int updates = UpdatesOf(instruction.reads);
    if (updates < 0) return "does not read every layer of its stage in one version";
    for (const std::vector<SlotId>* slots : {&instruction.reads, &instruction.writes}) {
      const std::vector<SlotId> scalars = OfKind(*slots, SlotKind::kScalars);
      if (!scalars.empty() && !AreScalars(scalars, {0})) return "leaves its loss elsewhere";
    }
    for (const SlotId slot : instruction.writes) {
      const SlotKind kind = At(slot).kind;
      if (kind == SlotKind::kScalars) {
        ++num_losses_;
        continue;
      }
      const bool stash = kind == SlotKind::kStash;
      Content made =
          Of(stash ? What::kStash : What::kActivation, instruction.stage.value(), instruction);
      if (stash) made.updates = updates;
      Set(slot, made);
    }
    return "";
  }

  std::string Backward(const Instruction& instruction) {
    const std::string problem = CheckInputs(instruction);
    if (!problem.empty()) return problem;
    const SlotId stash = FindSlot(program_, instruction.reads, SlotKind::kStash, instruction.stage);
    Content expected = Of(What::kStash, instruction.stage.value(), instruction);
    expected.updates = contents_[stash.value()].updates;
    if (!Holds(stash, expected)) return "finds another stash in its slot";
    if (UpdatesOf(instruction.reads) != expected.updates) return "meets other weights than its F";
    if (OfKind(instruction.writes, SlotKind::kStash) != std::vector{stash}) {
      return "leaves its stash in another slot than it found";
    }
    if (OfKind(instruction.reads, SlotKind::kGradient) != all_gradients_ ||
        OfKind(instruction.writes, SlotKind::kGradient) != all_gradients_) {
      return "does not touch every layer of its stage once, in order";
    }
    for (const SlotId slot : instruction.writes) {
      switch (At(slot).kind) {
        case SlotKind::kInputGrad:
          Set(slot, Of(What::kGradient, instruction.stage.value(), instruction));
          break;
        case SlotKind::kGradient:
          ++gradients_[slot.value()].accumulated;
          break;
        default:
          break;
      }
    }
    last_backward_ = instruction.microbatch;
    Set(stash, {});  // used up: nothing may find it again
    return "";
  }

  std::string CheckInputs(const Instruction& instruction) const {
    const int stage = instruction.stage.value();
    for (const SlotId slot : instruction.reads) {
      switch (At(slot).kind) {
        case SlotKind::kTokens:
          if (!Holds(slot, Of(What::kTokens, -1, instruction))) return "finds other tokens";
          break;
        case SlotKind::kInput:
          if (!Holds(slot, Of(What::kActivation, stage - 1, instruction))) {
            return "finds another activation in its input slot";
          }
          break;
        case SlotKind::kOutputGrad:
          if (!Holds(slot, Of(What::kGradient, stage + 1, instruction))) {
            return "finds another gradient in its slot";
          }
          break;
        default:
          break;
      }
    }
    return "";
  }

  std::string Snapshot(const Instruction& instruction) {
    const int updates = UpdatesOf(instruction.reads);
    if (updates != updates_) return "does not read the newest weights";
    if (instruction.writes != Versions(1)) return "does not write every other version, in order";
    for (const SlotId slot : instruction.writes) {
      Set(slot, {.what = What::kWeights, .updates = updates});
    }
    return "";
  }

  // What was version v is version v+1 now.
  std::string Update(const Instruction& instruction) {
    const std::string problem = CheckGradients(instruction);
    if (!problem.empty()) return problem;
    if (instruction.microbatch.value() >= 0 && instruction.microbatch != last_backward_) {
      return "does not come right after the backward whose gradient it applies";
    }
    if (OfKind(instruction.reads, SlotKind::kGradient) != all_gradients_ ||
        OfKind(instruction.reads, SlotKind::kWeights) != weights_.at(0) ||
        instruction.writes != Versions(0)) {
      return "does not update every layer and version once, in order";
    }
    ++updates_;
    for (const SlotId slot : instruction.writes) {
      const int made = updates_ - At(slot).version;
      Set(slot, {.what = What::kWeights, .updates = std::max(0, made)});
    }
    for (Gradient& gradient : gradients_) {
      gradient.accumulated = 0;
      gradient.is_reduced = gradient.is_tied = false;
    }
    return "";
  }

  std::string Reduce(const Instruction& instruction) {
    const std::string problem = CheckGradients(instruction);
    if (!problem.empty()) return problem;
    for (const SlotId slot : instruction.reads) {
      Gradient& gradient = gradients_[slot.value()];
      bool& done = instruction.op == Op::kReduceGrad ? gradient.is_reduced : gradient.is_tied;
      if (done) return "sums a second time";
      done = true;
    }
    return "";
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

  // The F of the last stage tell them.
  bool TellsAllLosses() {
    const bool is_last = program_.pp_rank.value() + 1 == program_.pp_size;
    return !is_last || std::exchange(num_losses_, 0) == program_.num_microbatches;
  }

  // How many updates made the weights among `reads`; -1: they are not one version of all layers.
  int UpdatesOf(const std::vector<SlotId>& reads) const {
    const std::vector<SlotId> read = OfKind(reads, SlotKind::kWeights);
    if (read.empty() || read != weights_.at(At(read[0]).version)) return -1;
    const int updates = contents_[read[0].value()].updates;
    const bool same = std::all_of(read.begin(), read.end(), [&](SlotId slot) {
      return Holds(slot, {.what = What::kWeights, .updates = updates});
    });
    return same ? updates : -1;
  }

  // All from version `first` on.
  std::vector<SlotId> Versions(int first) const {
    std::vector<SlotId> all;
    for (auto it = weights_.lower_bound(first); it != weights_.end(); ++it) {
      all.insert(all.end(), it->second.begin(), it->second.end());
    }
    return all;
  }

  std::vector<SlotId> OfKind(const std::vector<SlotId>& slots, SlotKind kind) const {
    std::vector<SlotId> found;
    for (const SlotId slot : slots) {
      if (At(slot).kind == kind) found.push_back(slot);
    }
    return found;
  }

  // Sums of losses are in kScalars 0, what ranks exchange in 1.
  bool AreScalars(const std::vector<SlotId>& slots, const std::vector<int>& indices) const {
    return std::equal(slots.begin(), slots.end(), indices.begin(), indices.end(),
                      [&](SlotId slot, int index) {
                        return At(slot).kind == SlotKind::kScalars && At(slot).index == index;
                      });
  }

  Content Of(What what, int stage, const Instruction& instruction) const {
    return {.what = what,
            .stage = stage,
            .microbatch = instruction.microbatch.value(),
            .step = iteration_ + instruction.step_ahead};
  }
  const program::Slot& At(SlotId slot) const { return program_.slots[slot.value()]; }
  void Set(SlotId slot, const Content& content) { contents_[slot.value()] = content; }
  bool Holds(SlotId slot, const Content& content) const {
    return slot.value() >= 0 && contents_[slot.value()] == content;
  }

  const Program& program_;
  std::vector<Content> contents_;               // by slot
  std::vector<Gradient> gradients_;             // by slot
  std::map<int, std::vector<SlotId>> weights_;  // by version, by layer
  std::vector<SlotId> all_gradients_;           // by layer
  MicrobatchId last_backward_{-1};
  int iteration_ = 0;
  int updates_ = 0;
  int num_losses_ = 0;  // of the last stage's F since NORM_PARTIAL
};

}  // namespace

std::optional<Refusal> CheckRunningDataflow(const Program& program) {
  return Follower(program).Run();
}

}  // namespace takt::sim
