// SPDX-License-Identifier: Apache-2.0
#include "worker/train/forward_pass.h"

#include <algorithm>

#include "common/base/status.h"
#include "common/data/token_values.h"

namespace takt::train {

using program::ComputePart;
using program::FindSlot;
using program::Instruction;
using program::SlotKind;

namespace {

constexpr std::int64_t kStepsWithLosses = 2;

}  // namespace

absl::StatusOr<ForwardPass> ForwardPass::Create(const Options& options) {
  ForwardPass pass(options);
  RETURN_IF_ERROR(pass.Allocate());
  return pass;
}

absl::Status ForwardPass::Allocate() {
  const program::Program& program = *options_.program;
  loads_microbatches_ = program::IsAsynchronous(program);
  updates_microbatches_ = program::UpdatesEachMicrobatch(program);
  tokens_ = layout::TokenBlockOf(*options_.model, program);
  ASSIGN_OR_RETURN(slots_,
                   SlotMemory::Create(*options_.slots, program.slots.size(), *options_.backend));
  RETURN_IF_ERROR(AllocateHostMemory());
  const bool reads_data = std::ranges::any_of(
      program.slots, [](const program::Slot& slot) { return slot.kind == SlotKind::kTokens; });
  if (reads_data && options_.opens_data) {
    ASSIGN_OR_RETURN(source_, data::TokenSource::Open(options_.tokens));
  }
  return absl::OkStatus();
}

absl::Status ForwardPass::AllocateHostMemory() {
  const program::Program& program = *options_.program;
  const auto losses = static_cast<std::size_t>(kStepsWithLosses * program.num_microbatches);
  ASSIGN_OR_RETURN(losses_, options_.backend->AllocateHost(losses * sizeof(MicrobatchLoss)));
  if (options_.backend->memory_is_host()) return absl::OkStatus();
  host_tokens_.resize(program.slots.size());
  for (std::size_t i = 0; i < program.slots.size(); ++i) {
    if (program.slots[i].kind != SlotKind::kTokens) continue;
    ASSIGN_OR_RETURN(host_tokens_[i],
                     options_.backend->AllocateHost(static_cast<std::size_t>(tokens_.bytes())));
  }
  return absl::OkStatus();
}

absl::Status ForwardPass::Load(const Instruction& instruction, StepId step) {
  if (source_ == nullptr) return absl::OkStatus();
  const SlotId slot = instruction.writes.front();
  const std::span<std::byte> block = HostTokens(slot);
  const int first = loads_microbatches_ ? instruction.microbatch.value() : 0;
  for (MicrobatchId i(0); i.value() < tokens_.num_microbatches; ++i) {
    source_->Read(step, options_.dp_rank, MicrobatchId(first + i.value()), tokens_.tokens(block, i),
                  tokens_.targets(block, i));
  }
  tokens_.scored(block) = CountScored(step, tokens_.targets(block, MicrobatchId(0)));
  if (host_tokens_.empty()) return absl::OkStatus();
  RETURN_IF_ERROR(options_.load_backend->CopyFromHost(block, slots_.Bytes(slot).data()));
  return options_.load_backend->Synchronize();
}

// targets: of the microbatch, if it is loaded alone.
std::int64_t ForwardPass::CountScored(StepId step, std::span<const std::int32_t> targets) {
  if (updates_microbatches_) {
    return std::ssize(targets) - std::count(targets.begin(), targets.end(), data::kIgnoredTarget);
  }
  if (counted_step_ != step) {
    counted_ = source_->CountScored(step);
    counted_step_ = step;
  }
  return counted_;
}

absl::Status ForwardPass::Forward(const ComputePart& forward, StepId step) {
  return options_.stages->at(forward.stage).Forward(ForwardBuffers(forward), LossOf(forward, step));
}

StageBuffers ForwardPass::ForwardBuffers(const ComputePart& forward) {
  StageBuffers buffers = ReadBuffers(forward);
  buffers.stash =
      slots_.Room(FindSlot(*options_.program, forward.writes, SlotKind::kStash, forward.stage));
  buffers.output = Written(forward, SlotKind::kOutput, 0);
  if (buffers.output == nullptr) buffers.output = Written(forward, SlotKind::kInput, +1);
  return buffers;
}

LossCall ForwardPass::LossOf(const ComputePart& forward, StepId step) {
  LossCall loss{.gradient = options_.gradient};
  if (forward.stage.value() + 1 == options_.program->num_stages) {
    MicrobatchLoss& at = LossesOf(step)[forward.microbatch.value()];
    at.scored = tokens_.scored(HostTokens(TokensOf(forward)));
    loss.sum = &at.sum;
  }
  return loss;
}

StageBuffers ForwardPass::BackwardBuffers(const ComputePart& backward) {
  StageBuffers buffers = ReadBuffers(backward);
  buffers.d_input = Written(backward, SlotKind::kInputGrad, 0);
  if (buffers.d_input == nullptr) buffers.d_input = Written(backward, SlotKind::kOutputGrad, -1);
  // I writes it, W reads it.
  for (const std::span<const SlotId> slots : {backward.reads, backward.writes}) {
    const SlotId slot = FindSlot(*options_.program, slots, SlotKind::kRecomputed, backward.stage);
    if (slot.value() >= 0) buffers.recomputed = slots_.Room(slot);
  }
  return buffers;
}

LossShare ForwardPass::loss_share(StepId step) const {
  if (!options_.stages->contains(StageId(options_.program->num_stages - 1))) return {};
  LossShare share{.known = true};
  for (const MicrobatchLoss& loss : LossesOf(step)) {
    share.sum += loss.sum;
    // Each is of its microbatch, or of the whole batch (0: a microbatch of the other copy).
    share.scored =
        updates_microbatches_ ? share.scored + loss.scored : std::max(share.scored, loss.scored);
  }
  return share;
}

StageBuffers ForwardPass::ReadBuffers(const ComputePart& part) {
  StageBuffers buffers{.microbatch = part.microbatch};
  if (const SlotId slot = TokensOf(part); slot.value() >= 0) {
    const std::span<std::byte> block = slots_.Bytes(slot);
    const MicrobatchId m = InBlock(part.microbatch);
    buffers.view = {.tokens = tokens_.tokens(block, m).data(),
                    .targets = tokens_.targets(block, m).data()};
    const std::int64_t scored = tokens_.scored(HostTokens(slot));
    buffers.loss_scale = scored > 0 ? static_cast<float>(1.0 / static_cast<double>(scored)) : 0;
  }
  const auto read = [&](SlotKind kind) {
    return slots_.Floats(FindSlot(*options_.program, part.reads, kind, part.stage));
  };
  buffers.input = read(SlotKind::kInput);
  buffers.stash =
      slots_.Room(FindSlot(*options_.program, part.reads, SlotKind::kStash, part.stage));
  buffers.d_output = read(SlotKind::kOutputGrad);
  return buffers;
}

float* ForwardPass::Written(const ComputePart& part, SlotKind kind, int neighbour) {
  const StageId stage(part.stage.value() + neighbour);
  return slots_.Floats(FindSlot(*options_.program, part.writes, kind, stage));
}

SlotId ForwardPass::TokensOf(const ComputePart& part) const {
  return FindSlot(*options_.program, part.reads, SlotKind::kTokens, StageId(-1));
}

std::span<std::byte> ForwardPass::HostTokens(SlotId slot) const {
  if (host_tokens_.empty()) return slots_.Bytes(slot);
  const backend::Buffer& buffer = host_tokens_[slot.value()];
  return {buffer.data(), buffer.bytes()};
}

std::span<ForwardPass::MicrobatchLoss> ForwardPass::LossesOf(StepId step) const {
  const auto count = static_cast<std::size_t>(options_.program->num_microbatches);
  auto* const first = reinterpret_cast<MicrobatchLoss*>(losses_.data());
  return {first + static_cast<std::size_t>(step.value() % kStepsWithLosses) * count, count};
}

}  // namespace takt::train
