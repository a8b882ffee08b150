// SPDX-License-Identifier: Apache-2.0
#include "worker/train/program_state.h"

#include <optional>
#include <utility>

#include "common/base/status.h"

namespace takt::train {

using program::Program;
using program::SlotKind;

namespace {

LossTerms TermsOf(const TrainerOptions& options) {
  const config::Loss& loss = options.job->loss;
  return {
      .shares = {.target = static_cast<float>(1 - loss.label_smoothing),
                 .each = static_cast<float>(loss.label_smoothing / options.model->config.vocab)},
      .z_loss = loss.z_loss};
}

// Only training counts the rows of experts.
ExpertCounts::Options CountsOf(const model::Model& model, const Program& program, bool trains) {
  const std::optional<model::Mixture>& mixture = model.config.mixture;
  if (!mixture.has_value() || !trains) return {};
  return {.num_microbatches = program.num_microbatches,
          .blocks = model.config.layers,
          .experts = mixture->experts,
          .pairs = std::int64_t{model.microbatch} * model.config.context * mixture->chosen,
          .ranks = model.experts.size};
}

}  // namespace

absl::StatusOr<std::unique_ptr<ProgramState>> ProgramState::Create(RankState& rank,
                                                                   const Options& options) {
  const Program& program = *options.program;
  const layout::TokenBlock tokens = layout::TokenBlockOf(*rank.options.model, program);
  ASSIGN_OR_RETURN(SlotMemory slots,
                   SlotMemory::Create(*options.slots, program.slots.size(), *rank.compute));
  ASSIGN_OR_RETURN(
      StepLosses losses,
      StepLosses::Create(*rank.compute,
                         {.num_microbatches = program.num_microbatches,
                          .leaves = rank.leaves(),
                          .holds_last_stage = rank.stages.contains(StageId(program.num_stages - 1)),
                          .updates_microbatches = program::UpdatesEachMicrobatch(program)}));
  ASSIGN_OR_RETURN(
      ExpertCounts expert_counts,
      ExpertCounts::Create(*rank.compute, CountsOf(*rank.options.model, program, options.trains)));
  std::unique_ptr<ProgramState> state(
      new ProgramState{.rank = rank,
                       .program = program,
                       .trains = options.trains,
                       .loss_terms = options.trains ? TermsOf(rank.options) : LossTerms(),
                       .tokens = tokens,
                       .slots = std::move(slots),
                       .losses = std::move(losses),
                       .expert_counts = std::move(expert_counts),
                       .replays = Replays(options.recorder)});
  bool reads_data = false;
  for (std::size_t i = 0; i < program.slots.size(); ++i) {
    if (program.slots[i].kind != SlotKind::kTokens) continue;
    reads_data = true;
    if (rank.compute->memory_is_host()) continue;
    state->host_tokens.resize(program.slots.size());
    ASSIGN_OR_RETURN(state->host_tokens[i],
                     rank.compute->AllocateHost(static_cast<std::size_t>(tokens.bytes())));
  }
  if (reads_data && !rank.options.shapes_only) {
    ASSIGN_OR_RETURN(state->source, worker_data::TokenSource::Open(options.tokens));
  }
  return state;
}

std::span<std::byte> ProgramState::HostTokens(SlotId slot) const {
  if (host_tokens.empty()) return slots.Bytes(slot);
  const backend::Buffer& buffer = host_tokens[slot.value()];
  return {buffer.data(), buffer.bytes()};
}

}  // namespace takt::train
