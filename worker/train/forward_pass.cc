// SPDX-License-Identifier: Apache-2.0
#include "worker/train/forward_pass.h"

#include "common/base/status.h"

namespace takt::train {

using program::ComputePart;
using program::Instruction;
using program::SlotKind;

absl::StatusOr<ForwardPass> ForwardPass::Create(const Options& options) {
  ForwardPass pass(options);
  RETURN_IF_ERROR(pass.Allocate());
  return pass;
}

absl::Status ForwardPass::Allocate() {
  const model::Model& model = *options_.model;
  const program::Program& program = *options_.program;
  const std::int64_t rows = std::int64_t{model.microbatch} * model.config.context;
  tokens_ = TokenBlock{.num_microbatches = program.num_microbatches, .rows = rows};
  bool reads_data = false;
  const auto bytes_of = [&](const program::Slot& slot) -> std::int64_t {
    switch (slot.kind) {
      case SlotKind::kTokens:
        reads_data = true;
        return tokens_.bytes();
      case SlotKind::kInput:
      case SlotKind::kOutput:
      case SlotKind::kOutputGrad:
      case SlotKind::kInputGrad:
        return rows * model.config.hidden * static_cast<std::int64_t>(sizeof(float));
      case SlotKind::kStash:
        return options_.stages->at(slot.stage).stash_floats() *
               static_cast<std::int64_t>(sizeof(float));
      default:
        return 0;
    }
  };
  ASSIGN_OR_RETURN(slots_, SlotMemory::Create(program, *options_.backend, bytes_of));
  loss_sums_.resize(program.num_microbatches);
  if (reads_data) {
    ASSIGN_OR_RETURN(source_, data::TokenSource::Open(options_.tokens));
  }
  return absl::OkStatus();
}

absl::Status ForwardPass::Load(const Instruction& instruction, StepId step) {
  const std::span<std::byte> block = slots_.Bytes(instruction.writes.front());
  for (MicrobatchId m(0); m.value() < options_.program->num_microbatches; ++m) {
    source_->Read(step, options_.dp_rank, m, tokens_.tokens(block, m), tokens_.targets(block, m));
  }
  tokens_.scored(block) = source_->CountScored(step);
  return absl::OkStatus();
}

absl::Status ForwardPass::Forward(const ComputePart& forward) {
  return options_.stages->at(forward.stage).Forward(ForwardBuffers(forward), LossOf(forward));
}

StageBuffers ForwardPass::ForwardBuffers(const ComputePart& forward) {
  StageBuffers buffers = ReadBuffers(forward);
  buffers.stash = Written(forward, SlotKind::kStash, 0);
  buffers.output = Written(forward, SlotKind::kOutput, 0);
  if (buffers.output == nullptr) buffers.output = Written(forward, SlotKind::kInput, +1);
  return buffers;
}

LossCall ForwardPass::LossOf(const ComputePart& forward) {
  LossCall loss{.gradient = options_.gradient};
  if (forward.stage.value() + 1 == options_.program->num_stages) {
    scored_ = tokens_.scored(TokensOf(forward));
    loss.scale = scored_ > 0 ? static_cast<float>(1.0 / static_cast<double>(scored_)) : 0;
    loss.sum = &loss_sums_[forward.microbatch.value()];
  }
  return loss;
}

StageBuffers ForwardPass::BackwardBuffers(const ComputePart& backward) {
  StageBuffers buffers = ReadBuffers(backward);
  buffers.d_input = Written(backward, SlotKind::kInputGrad, 0);
  if (buffers.d_input == nullptr) buffers.d_input = Written(backward, SlotKind::kOutputGrad, -1);
  return buffers;
}

LossShare ForwardPass::loss_share() const {
  if (!options_.stages->contains(StageId(options_.program->num_stages - 1))) return {};
  LossShare share{.scored = scored_, .known = true};
  for (const double sum : loss_sums_) share.sum += sum;
  return share;
}

StageBuffers ForwardPass::ReadBuffers(const ComputePart& part) {
  StageBuffers buffers{.microbatch = part.microbatch};
  const std::span<std::byte> block = TokensOf(part);
  if (!block.empty()) {
    buffers.view = {.tokens = tokens_.tokens(block, part.microbatch).data(),
                    .targets = tokens_.targets(block, part.microbatch).data()};
  }
  const auto read = [&](SlotKind kind) {
    return slots_.Floats(program::FindSlot(*options_.program, part.reads, kind, part.stage));
  };
  buffers.input = read(SlotKind::kInput);
  buffers.stash = read(SlotKind::kStash);
  buffers.d_output = read(SlotKind::kOutputGrad);
  return buffers;
}

float* ForwardPass::Written(const ComputePart& part, SlotKind kind, int neighbour) {
  const StageId stage(part.stage.value() + neighbour);
  return slots_.Floats(program::FindSlot(*options_.program, part.writes, kind, stage));
}

std::span<std::byte> ForwardPass::TokensOf(const ComputePart& part) {
  const SlotId slot =
      program::FindSlot(*options_.program, part.reads, SlotKind::kTokens, StageId(-1));
  return slot.value() < 0 ? std::span<std::byte>() : slots_.Bytes(slot);
}

}  // namespace takt::train
