// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "common/base/status.h"
#include "common/data/token_values.h"
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
                    dp_rank = state.rank.options.mesh.DpRankOf(state.rank.options.rank),
                    counts_its_own = program::UpdatesEachMicrobatch(state.program)](
                       StepId step) -> absl::Status {
    const layout::TokenBlock& tokens = state.tokens;
    for (MicrobatchId i(0); i.value() < tokens.num_microbatches; ++i) {
      state.source->Read(step, dp_rank, MicrobatchId(first + i.value()), tokens.tokens(block, i),
                         tokens.targets(block, i), tokens.starts(block, i));
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
