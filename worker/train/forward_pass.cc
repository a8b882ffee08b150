// SPDX-License-Identifier: Apache-2.0
#include "worker/train/forward_pass.h"

#include "common/base/status.h"

namespace takt::train {

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

absl::Status ForwardPass::Forward(const Instruction& instruction) {
  StageBuffers buffers = ReadBuffers(instruction);
  buffers.stash = Written(instruction, SlotKind::kStash, 0);
  buffers.output = Written(instruction, SlotKind::kOutput, 0);
  if (buffers.output == nullptr) buffers.output = Written(instruction, SlotKind::kInput, +1);
  LossCall loss{.gradient = options_.gradient};
  if (instruction.stage.value() + 1 == options_.program->num_stages) {
    scored_ = tokens_.scored(TokensOf(instruction));
    loss.scale = scored_ > 0 ? static_cast<float>(1.0 / static_cast<double>(scored_)) : 0;
    loss.sum = &loss_sums_[instruction.microbatch.value()];
  }
  return options_.stages->at(instruction.stage).Forward(buffers, loss);
}

LossShare ForwardPass::loss_share() const {
  if (!options_.stages->contains(StageId(options_.program->num_stages - 1))) return {};
  LossShare share{.scored = scored_, .known = true};
  for (const double sum : loss_sums_) share.sum += sum;
  return share;
}

StageBuffers ForwardPass::ReadBuffers(const Instruction& instruction) {
  StageBuffers buffers{.microbatch = instruction.microbatch};
  const std::span<std::byte> block = TokensOf(instruction);
  if (!block.empty()) {
    buffers.view = {.tokens = tokens_.tokens(block, instruction.microbatch).data(),
                    .targets = tokens_.targets(block, instruction.microbatch).data()};
  }
  const auto read = [&](SlotKind kind) {
    return slots_.Floats(
        program::FindSlot(*options_.program, instruction.reads, kind, instruction.stage));
  };
  buffers.input = read(SlotKind::kInput);
  buffers.stash = read(SlotKind::kStash);
  buffers.d_output = read(SlotKind::kOutputGrad);
  return buffers;
}

float* ForwardPass::Written(const Instruction& instruction, SlotKind kind, int neighbour) {
  const StageId stage(instruction.stage.value() + neighbour);
  return slots_.Floats(program::FindSlot(*options_.program, instruction.writes, kind, stage));
}

std::span<std::byte> ForwardPass::TokensOf(const Instruction& instruction) {
  const SlotId slot =
      program::FindSlot(*options_.program, instruction.reads, SlotKind::kTokens, StageId(-1));
  return slot.value() < 0 ? std::span<std::byte>() : slots_.Bytes(slot);
}

}  // namespace takt::train
