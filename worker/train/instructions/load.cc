// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/base/status.h"
#include "common/data/token_values.h"
#include "worker/train/context_meetings.h"
#include "worker/train/instructions/bind.h"

namespace takt::train {
namespace {

std::int64_t CountScored(std::span<const std::int32_t> targets) {
  return std::ssize(targets) - std::count(targets.begin(), targets.end(), data::kIgnoredTarget);
}

// The LOADs of a step count its global batch only once.
std::int64_t CountScored(ProgramState& state, StepId step) {
  if (state.counted.step != step)
    state.counted = {.step = step, .scored = state.source->CountScored(step)};
  return state.counted.scored;
}

// Says where a microbatch's rows go.
struct Rows {
  std::span<std::int32_t> tokens, targets, starts;
};

// Reads the rank's rows of a microbatch.
void ReadMicrobatch(ProgramState& state, StepId step, MicrobatchId microbatch, const Rows& rows) {
  const TrainerOptions& options = state.rank.options;
  const DpRank dp_rank = options.mesh.DpRankOf(options.rank);
  if (state.rank.context == nullptr)
    return state.source->Read(step, dp_rank, microbatch, rows.tokens, rows.targets, rows.starts);
  // Other ranks have the rest of these sequences.
  const model::ContextShare& share = state.rank.context->share();
  const std::int64_t context = options.model->config.context;
  const auto whole = [&share](std::span<std::int32_t> here) {
    return std::vector<std::int32_t>(here.size() * static_cast<std::size_t>(share.size));
  };
  std::vector<std::int32_t> tokens = whole(rows.tokens), targets = whole(rows.targets),
                            starts = whole(rows.starts);
  state.source->Read(step, dp_rank, microbatch, tokens, targets, starts);
  PickTokens(share, context, tokens, rows.tokens);
  PickTokens(share, context, targets, rows.targets);
  PickStarts(share, context, starts, rows.starts);
}

}  // namespace

// LOAD: reads the tokens of a step, or of one of its microbatches, into a kTokens slot.
Bound BindLoad(ProgramState& state, const program::Instruction& instruction) {
  const int first = std::max(0, instruction.microbatch.value());
  if (first + state.tokens.num_microbatches > state.program.num_microbatches)
    return absl::InvalidArgumentError("it loads microbatches that the step does not have");
  if (instruction.writes.empty()) return absl::InvalidArgumentError("it writes no tokens");
  if (state.source == nullptr) return engine::NothingToDo();
  const SlotId slot = instruction.writes.front();
  const auto run = [&state, first, block = state.HostTokens(slot),
                    memory = state.slots.Bytes(slot).data(),
                    counts_its_own = program::UpdatesEachMicrobatch(state.program)](
                       StepId step) -> absl::Status {
    const layout::TokenBlock& tokens = state.tokens;
    for (MicrobatchId i(0); i.value() < tokens.num_microbatches; ++i) {
      ReadMicrobatch(state, step, MicrobatchId(first + i.value()),
                     {tokens.tokens(block, i), tokens.targets(block, i), tokens.starts(block, i)});
    }
    tokens.scored(block) = counts_its_own ? CountScored(tokens.targets(block, MicrobatchId(0)))
                                          : CountScored(state, step);
    if (memory == block.data()) return absl::OkStatus();
    RETURN_IF_ERROR(state.rank.load->CopyFromHost(block, memory));
    return state.rank.load->Synchronize();
  };
  return engine::MakeBound(nullptr, run);
}

}  // namespace takt::train
