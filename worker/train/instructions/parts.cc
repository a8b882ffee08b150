// SPDX-License-Identifier: Apache-2.0
#include "worker/train/instructions/parts.h"

#include <map>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace takt::train {
namespace {

using program::ComputePart;
using program::Op;
using program::Slot;
using program::SlotKind;

// Finds the slots of a part by their kinds: the table of docs/programs.md.
StageBuffers BuffersOf(const ProgramState& state, const ComputePart& part) {
  const SlotMemory& slots = state.slots;
  StageBuffers buffers{.microbatch = part.microbatch};
  for (const SlotId slot : part.reads) {
    const SlotKind kind = state.program.slots[slot.value()].kind;
    if (kind == SlotKind::kTokens) buffers.view = ViewOf(state, slot, part.microbatch);
    if (kind == SlotKind::kInput) buffers.input = slots.Bytes(slot).data();
    if (kind == SlotKind::kOutputGrad || kind == SlotKind::kHeadGrad)
      buffers.d_output = slots.Bytes(slot).data();
    if (kind == SlotKind::kStash) buffers.stash = slots.Room(slot);
    if (kind == SlotKind::kRecomputed) buffers.recomputed = slots.Room(slot);
  }
  for (const SlotId slot : part.writes) {
    const SlotKind kind = state.program.slots[slot.value()].kind;
    // A stage of this rank reads its input directly from where it is written.
    if (kind == SlotKind::kOutput || kind == SlotKind::kInput || kind == SlotKind::kHeadInput)
      buffers.output = slots.Bytes(slot).data();
    if (kind == SlotKind::kInputGrad || kind == SlotKind::kOutputGrad)
      buffers.d_input = slots.Bytes(slot).data();
    if (kind == SlotKind::kStash) buffers.stash = slots.Room(slot);
    if (kind == SlotKind::kRecomputed) buffers.recomputed = slots.Room(slot);
  }
  return buffers;
}

absl::Status CheckBuffers(const ProgramState& state, const ComputePart& part, const Stage& stage,
                          const StageBuffers& buffers) {
  // Where the vocabulary is spread, both ends of the pipeline have neighbours: the meetings.
  const bool spreads = program::SpreadsVocabulary(state.program);
  const bool last_of_all = part.stage.value() + 1 == state.program.num_stages;
  const bool first = part.stage == StageId(0) && !spreads, last = last_of_all && !spreads;
  const bool forward = part.op == Op::kForward, apart = !forward && part.op != Op::kBackward;
  const auto has = [](const void* memory, bool wanted) { return (memory != nullptr) == wanted; };
  // Then every part has the tokens. Of Ws where the vocabulary is spread, only that of the table of
  // positions needs them.
  const bool separate = state.rank.options.model->separate_documents;
  const bool restarts = part.op != Op::kWeightGrad || part.stage == StageId(0);
  const bool needs_tokens = spreads ? separate && restarts : first || last || separate;
  const layout::StageLayout& layout = stage.layout();
  // W of a norm reads nothing but the stash.
  const bool without_gradient = spreads && last_of_all && part.op == Op::kWeightGrad;
  if (((needs_tokens || !spreads) && !has(buffers.view.tokens, needs_tokens)) ||
      !has(buffers.input, !first) ||
      !has(buffers.d_output, !forward && !last && !without_gradient) ||
      !has(buffers.output, forward && !last) ||
      !has(buffers.d_input, !forward && !first && part.op != Op::kWeightGrad) ||
      !has(buffers.stash.base, layout.stash_bytes > 0)) {
    return absl::InvalidArgumentError("it does not touch the slots that a part of its stage needs");
  }
  if (apart && !has(buffers.recomputed.base, layout.recomputed_bytes > 0)) {
    return absl::InvalidArgumentError(
        "what its stage recomputes and the slots for that, between I and W, do not agree");
  }
  return absl::OkStatus();
}

// Returns whether it is the part of the last stage that computes the loss: F, or the B that has
// what a sliced head computes. Where the vocabulary is spread, T and LOSS compute the loss.
bool ComputesLoss(const ProgramState& state, const ComputePart& part, const Stage& stage) {
  const bool is_last = part.stage.value() + 1 == state.program.num_stages;
  if (!is_last || program::SpreadsVocabulary(state.program)) return false;
  const bool by_backward = state.trains && stage.layout().slices_head();
  return part.op == (by_backward ? Op::kBackward : Op::kForward);
}

// Checks that all weights that a part reads are of one version, and that there is a slot for each
// layer of its stage. Returns the version.
absl::StatusOr<int> VersionOf(const ProgramState& state, const Stage& stage, StageId id,
                              std::span<const SlotId> weights) {
  std::size_t layers = 0;
  int version = 0;
  for (const SlotId slot_id : weights) {
    const Slot& slot = state.program.slots[slot_id.value()];
    if (slot.kind != SlotKind::kWeights || slot.stage != id) continue;
    if (layers++ > 0 && slot.version != version)
      return absl::InvalidArgumentError("it reads weights of two versions");
    version = slot.version;
  }
  if (layers == stage.num_layers()) return version;
  return absl::InvalidArgumentError(absl::StrCat("it reads the weights of ", layers,
                                                 " layers; the partition gives stage ", id.value(),
                                                 " ", stage.num_layers()));
}

}  // namespace

TokenView ViewOf(const ProgramState& state, SlotId tokens, MicrobatchId microbatch) {
  const std::span<std::byte> block = state.slots.Bytes(tokens);
  const MicrobatchId m = state.InBlock(microbatch);
  return {.tokens = state.tokens.tokens(block, m).data(),
          .targets = state.tokens.targets(block, m).data(),
          .starts = state.tokens.starts(block, m).data(),
          .terms = state.loss_terms};
}

LossCall BoundLoss::Call(StepId step) const {
  LossCall call{.expert_counts = expert_counts[step.value() % ExpertCounts::kSteps]};
  if (scored == nullptr) return call;
  StepLosses::Microbatch& loss = *places[step.value() % StepLosses::kSteps];
  loss.scored = *scored;
  call.sum = &loss.sum;
  if (loss.scored > 0) call.scale = static_cast<float>(1.0 / static_cast<double>(loss.scored));
  return call;
}

BoundLoss ResolveLoss(const ProgramState& state, SlotId tokens, MicrobatchId microbatch) {
  BoundLoss loss{.scored = &state.tokens.scored(state.HostTokens(tokens))};
  for (std::int64_t i = 0; i < StepLosses::kSteps; ++i)
    loss.places[i] = state.losses.At(i, microbatch);
  return loss;
}

std::unique_ptr<engine::BoundInstruction> KeepingLeaf(
    ProgramState& state, const program::Instruction& instruction, backend::Backend& backend,
    std::unique_ptr<engine::BoundInstruction> bound) {
  if (state.rank.leaves() == 1) return bound;
  backend::Stream* const stream = bound->stream();
  return engine::MakeBound(
      stream,
      [&rank = state.rank, &backend, bound = std::move(bound), stage = instruction.stage,
       microbatch = instruction.microbatch](StepId step) -> absl::Status {
        RETURN_IF_ERROR(bound->Run(step));
        return rank.KeepLeaf(backend, stage, microbatch);
      });
}

absl::StatusOr<BoundPart> ResolvePart(ProgramState& state, const ComputePart& part,
                                      std::span<const SlotId> weights, bool beside) {
  std::map<StageId, Stage>& stages = beside ? state.rank.pair->stages : state.rank.stages;
  const auto stage = stages.find(part.stage);
  if (stage == stages.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("this rank does not hold stage ", part.stage.value()));
  }
  BoundPart bound{.stage = stage->second,
                  .buffers = BuffersOf(state, part),
                  .has_gradients = state.rank.has_gradients.at(part.stage),
                  .begins_leaf = state.rank.BeginsLeaf(part.microbatch)};
  ASSIGN_OR_RETURN(bound.version, VersionOf(state, bound.stage, part.stage, weights));
  RETURN_IF_ERROR(CheckBuffers(state, part, bound.stage, bound.buffers));
  for (const SlotId slot : part.reads) {
    if (!ComputesLoss(state, part, bound.stage)) break;
    if (state.program.slots[slot.value()].kind == SlotKind::kTokens)
      bound.loss = ResolveLoss(state, slot, part.microbatch);
  }
  if (part.op != Op::kForward) return bound;
  for (std::int64_t i = 0; i < ExpertCounts::kSteps; ++i)
    bound.loss.expert_counts[i] = state.expert_counts.At(i, part.microbatch);
  return bound;
}

}  // namespace takt::train
