// SPDX-License-Identifier: Apache-2.0
// What training and validation share on one rank: the memory of a program's slots, the tokens of a
// step, F and the loss.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/mesh/mesh.h"
#include "common/model/model.h"
#include "common/program/compute_part.h"
#include "common/program/program.h"
#include "worker/backend/backend.h"
#include "worker/data/token_source.h"
#include "worker/train/loss_share.h"
#include "worker/train/slot_memory.h"
#include "worker/train/stage.h"
#include "worker/train/token_block.h"

namespace takt::train {

// Threads: Load on the load lane, Forward on the compute lane, loss_share on the reduce lane; the
// slots of the program order them.
class ForwardPass {
 public:
  struct Options {
    const program::Program* program = nullptr;  // all pointers borrowed
    const model::Model* model = nullptr;
    std::map<StageId, Stage>* stages = nullptr;  // of this rank
    backend::Backend* backend = nullptr;
    data::TokenSourceOptions tokens;  // opened only if a stage here reads them
    DpRank dp_rank;
    bool opens_data = true;  // false: nothing is loaded
    bool gradient = true;    // false: nobody will ask for I and W
  };

  // Errors: of the token file (kInvalidArgument), of memory (kResourceExhausted).
  static absl::StatusOr<ForwardPass> Create(const Options& options);

  absl::Status Load(const program::Instruction& instruction, StepId step);
  absl::Status Forward(const program::ComputePart& forward);
  // Of the step that Forward went through last.
  LossShare loss_share() const;

  std::span<std::byte> SlotBytes(SlotId slot) { return slots_.Bytes(slot); }
  // What F takes and gives.
  StageBuffers ForwardBuffers(const program::ComputePart& forward);
  LossCall LossOf(const program::ComputePart& forward);
  // What I and W take and give.
  StageBuffers BackwardBuffers(const program::ComputePart& backward);

 private:
  struct MicrobatchLoss {
    double sum = 0;
    std::int64_t scored = 0;  // what the gradient was divided by
  };
  explicit ForwardPass(const Options& options) : options_(options) {}
  absl::Status Allocate();
  StageBuffers ReadBuffers(const program::ComputePart& part);
  // Memory of the written slot of the part's stage, or of a neighbouring stage on this rank; null:
  // it writes none.
  float* Written(const program::ComputePart& part, program::SlotKind kind, int neighbour);
  std::span<std::byte> TokensOf(const program::ComputePart& part);

  Options options_;
  // Its place in the kTokens slot that holds it.
  MicrobatchId InBlock(MicrobatchId m) const { return loads_microbatches_ ? MicrobatchId(0) : m; }
  std::int64_t CountScored(StepId step, std::span<const std::int32_t> targets);

  bool loads_microbatches_ = false;    // one with each LOAD, instead of all of a step
  bool updates_microbatches_ = false;  // so each gradient is the mean over its own tokens
  TokenBlock tokens_;
  SlotMemory slots_;
  std::unique_ptr<data::TokenSource> source_;  // null: no stage here reads tokens
  // The step whose global batch LOAD has counted last.
  StepId counted_step_{0};
  std::int64_t counted_ = 0;
  // What kScalars stands for.
  std::vector<MicrobatchLoss> losses_;
};

}  // namespace takt::train
