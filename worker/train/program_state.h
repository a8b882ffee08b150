// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "common/layout/tensor.h"
#include "common/layout/token_block.h"
#include "common/program/program.h"
#include "worker/backend/backend.h"
#include "worker/data/token_source.h"
#include "worker/train/expert_counts.h"
#include "worker/train/rank_state.h"
#include "worker/train/replays.h"
#include "worker/train/slot_memory.h"
#include "worker/train/step_losses.h"

namespace takt::train {

// What the instructions of one program share, besides the rank's state. The training program has
// one, and the validation program has another. The slots of the program order the instructions that
// use it.
struct ProgramState {
  struct Options {
    const program::Program* program = nullptr;  // borrowed
    const layout::Section* slots = nullptr;     // where the program's slots are
    worker_data::TokenSourceOptions tokens;     // opened only if a stage of this rank reads them
    bool trains = true;                         // false: I and W never follow an F
    backend::Recorder* recorder = nullptr;      // the compute lane's; null: nothing is recorded
  };
  // rank: borrowed.
  // Errors: kInvalidArgument (what the job got wrong about its token files), kResourceExhausted.
  static absl::StatusOr<std::unique_ptr<ProgramState>> Create(RankState& rank,
                                                              const Options& options);

  // Where the host writes and reads the tokens of a slot.
  std::span<std::byte> HostTokens(SlotId slot) const;
  // The place of a microbatch in the kTokens slot that holds it.
  MicrobatchId InBlock(MicrobatchId m) const {
    return tokens.num_microbatches == 1 ? MicrobatchId(0) : m;
  }

  RankState& rank;
  const program::Program& program;
  const bool trains;
  const LossTerms loss_terms;  // of the job; validation is plain cross-entropy
  layout::TokenBlock tokens;   // the layout of every kTokens slot
  SlotMemory slots;
  std::vector<backend::Buffer> host_tokens;          // by slot; empty: the slots are host memory
  std::unique_ptr<worker_data::TokenSource> source;  // null: no stage here reads tokens
  // The step whose global batch LOAD has counted last. Only the load lane uses it.
  struct {
    StepId step{0};
    std::int64_t scored = 0;
  } counted;
  StepLosses losses;           // F or B of the compute lane writes them, the reduce lane reads them
  ExpertCounts expert_counts;  // F writes them, and who reports a step reads them
  Replays replays;             // only the compute lane uses them
  // For a validation program: the sums over all batches since Validator::Reset, equal on all ranks.
  // Only the reduce lane uses them.
  struct {
    double loss_sum = 0, scored = 0;
  } evaluated;
};

}  // namespace takt::train
