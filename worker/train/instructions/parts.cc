// SPDX-License-Identifier: Apache-2.0
#include "worker/train/instructions/parts.h"

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace takt::train {
namespace {

using program::ComputePart;
using program::FindSlot;
using program::SlotKind;

absl::StatusOr<Stage*> FindStage(ProgramState& state, StageId id) {
  const auto it = state.rank.stages.find(id);
  if (it != state.rank.stages.end()) return &it->second;
  return absl::InvalidArgumentError(absl::StrCat("this rank does not hold stage ", id.value()));
}

// Looks up the slots of one part. The first that should be there and is not is the part's error.
class SlotFinder {
 public:
  SlotFinder(const ProgramState& state, const ComputePart& part) : state_(state), part_(part) {}

  // SlotId(-1): there is none.
  SlotId Find(std::span<const SlotId> slots, SlotKind kind, int neighbour = 0) const {
    return FindSlot(state_.program, slots, kind, StageId(part_.stage.value() + neighbour));
  }

  // of_part: whether a part like this has such a slot; false: null.
  float* Read(SlotKind kind, bool of_part) {
    return Floats(of_part, "read", Find(part_.reads, kind));
  }
  // kind is in the part's own stage; on the same rank it is `local` of a neighbouring one.
  float* Written(SlotKind kind, SlotKind local, int neighbour, bool of_part) {
    const SlotId slot = Find(part_.writes, kind);
    return Floats(of_part, "write",
                  slot.value() >= 0 ? slot : Find(part_.writes, local, neighbour));
  }
  SlotRoom Stash(std::span<const SlotId> slots) {
    const SlotId slot = Find(slots, SlotKind::kStash);
    if (slot.value() < 0) Miss("have a stash");
    return state_.slots.Room(slot);
  }
  // SlotId(-1): the part reads none, and need not.
  SlotId Tokens(bool of_part) {
    const SlotId slot = FindSlot(state_.program, part_.reads, SlotKind::kTokens, StageId(-1));
    if (of_part && slot.value() < 0) Miss("read tokens");
    return of_part ? slot : SlotId(-1);
  }

  const absl::Status& status() const { return status_; }

 private:
  float* Floats(bool of_part, const char* does, SlotId slot) {
    if (!of_part) return nullptr;
    if (slot.value() < 0) Miss(absl::StrCat(does, " what passes between stages"));
    return state_.slots.Floats(slot);
  }
  void Miss(std::string what) {
    status_.Update(absl::InvalidArgumentError(absl::StrCat("it does not ", what)));
  }

  const ProgramState& state_;
  const ComputePart& part_;
  absl::Status status_;
};

bool IsFirst(const ComputePart& part) { return part.stage == StageId(0); }
bool IsLast(const ProgramState& state, const ComputePart& part) {
  return part.stage.value() + 1 == state.program.num_stages;
}

TokenView ViewOf(const ProgramState& state, SlotId slot, MicrobatchId microbatch) {
  if (slot.value() < 0) return {};
  const std::span<std::byte> block = state.slots.Bytes(slot);
  const MicrobatchId m = state.InBlock(microbatch);
  return {.tokens = state.tokens.tokens(block, m).data(),
          .targets = state.tokens.targets(block, m).data()};
}

// The version of the weights that the slots name: the slots of each layer of the stage, of one
// version.
absl::StatusOr<int> VersionOf(const ProgramState& state, const Stage& stage, StageId id,
                              std::span<const SlotId> slots) {
  std::size_t layers = 0;
  int version = 0;
  for (const SlotId slot_id : slots) {
    const program::Slot& slot = state.program.slots[slot_id.value()];
    if (slot.kind != SlotKind::kWeights || slot.stage != id) continue;
    if (layers++ > 0 && slot.version != version)
      return absl::InvalidArgumentError("it reads weights of two versions");
    version = slot.version;
  }
  if (layers != stage.num_layers()) {
    return absl::InvalidArgumentError(absl::StrCat("it reads the weights of ", layers,
                                                   " layers; the partition gives stage ",
                                                   id.value(), " ", stage.num_layers()));
  }
  return version;
}

}  // namespace

LossPlace::LossPlace(bool gradient, const StepLosses& losses, MicrobatchId microbatch,
                     const std::int64_t& scored)
    : gradient_(gradient), scored_(&scored) {
  for (std::int64_t i = 0; i < StepLosses::kSteps; ++i) places_[i] = losses.At(i, microbatch);
}

LossCall LossPlace::In(StepId step) const {
  LossCall call{.gradient = gradient_};
  if (scored_ == nullptr) return call;
  StepLosses::Microbatch& place = *places_[step.value() % StepLosses::kSteps];
  place.scored = *scored_;
  call.sum = &place.sum;
  if (place.scored > 0) call.scale = static_cast<float>(1.0 / static_cast<double>(place.scored));
  return call;
}

absl::StatusOr<ForwardPart> ResolveForward(ProgramState& state, const ComputePart& forward) {
  ASSIGN_OR_RETURN(Stage* const stage, FindStage(state, forward.stage));
  ASSIGN_OR_RETURN(const int version, VersionOf(state, *stage, forward.stage, forward.reads));
  const bool first = IsFirst(forward), last = IsLast(state, forward);
  SlotFinder slots(state, forward);
  const SlotId tokens = slots.Tokens(first || last);
  const StageBuffers buffers{
      .microbatch = forward.microbatch,
      .view = ViewOf(state, tokens, forward.microbatch),
      .input = slots.Read(SlotKind::kInput, !first),
      .output = slots.Written(SlotKind::kOutput, SlotKind::kInput, +1, !last),
      .stash = slots.Stash(forward.writes)};
  RETURN_IF_ERROR(slots.status());
  LossPlace loss(state.trains);
  if (last) {
    loss = LossPlace(state.trains, state.losses, forward.microbatch,
                     state.tokens.scored(state.HostTokens(tokens)));
  }
  return ForwardPart{*stage, buffers, loss, version};
}

absl::StatusOr<BackwardPart> ResolveBackward(ProgramState& state, const ComputePart& backward,
                                             std::span<const SlotId> weights) {
  ASSIGN_OR_RETURN(Stage* const stage, FindStage(state, backward.stage));
  ASSIGN_OR_RETURN(const int version, VersionOf(state, *stage, backward.stage, weights));
  const bool first = IsFirst(backward), last = IsLast(state, backward);
  const bool passes_on = backward.op != program::Op::kWeightGrad && !first;
  SlotFinder slots(state, backward);
  StageBuffers buffers{
      .microbatch = backward.microbatch,
      .view = ViewOf(state, slots.Tokens(first || last), backward.microbatch),
      .input = slots.Read(SlotKind::kInput, !first),
      .d_output = slots.Read(SlotKind::kOutputGrad, !last),
      .d_input = slots.Written(SlotKind::kInputGrad, SlotKind::kOutputGrad, -1, passes_on),
      .stash = slots.Stash(backward.reads)};
  RETURN_IF_ERROR(slots.status());
  // I writes it, W reads it.
  for (const std::span<const SlotId> list : {backward.reads, backward.writes}) {
    const SlotId slot = slots.Find(list, SlotKind::kRecomputed);
    if (slot.value() >= 0) buffers.recomputed = state.slots.Room(slot);
  }
  return BackwardPart{*stage, buffers, version, state.rank.has_gradients.at(backward.stage)};
}

absl::Status CheckApart(const BackwardPart& part) {
  if (part.stage.layout().recomputed_bytes == 0 || part.buffers.recomputed.base != nullptr)
    return absl::OkStatus();
  return absl::InvalidArgumentError(
      "its stage recomputes, and the program has no slot for what I leaves to W");
}

}  // namespace takt::train
