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
#include "common/layout/tensor.h"
#include "common/layout/token_block.h"
#include "common/mesh/mesh.h"
#include "common/model/model.h"
#include "common/program/compute_part.h"
#include "common/program/program.h"
#include "worker/backend/backend.h"
#include "worker/data/token_source.h"
#include "worker/train/loss_share.h"
#include "worker/train/slot_memory.h"
#include "worker/train/stage.h"

namespace takt::train {

// Threads: Load on the load lane, Forward on the compute lane, loss_share on the reduce lane; the
// slots of the program order them. What the host writes and reads itself (tokens before they are
// copied, losses) lies in its own memory; everything else it knows the addresses of.
class ForwardPass {
 public:
  struct Options {
    const program::Program* program = nullptr;  // all pointers borrowed
    const model::Model* model = nullptr;
    const layout::Section* slots = nullptr;          // where those of the program lie
    std::map<StageId, Stage>* stages = nullptr;      // of this rank
    backend::Backend* backend = nullptr;             // of the stages
    backend::MemoryBackend* load_backend = nullptr;  // of the load lane
    data::TokenSourceOptions tokens;                 // opened only if a stage here reads them
    DpRank dp_rank;
    bool opens_data = true;  // false: nothing is loaded
    bool gradient = true;    // false: nobody will ask for I and W
  };

  // Errors: of the token file (kInvalidArgument), of memory (kResourceExhausted).
  static absl::StatusOr<ForwardPass> Create(const Options& options);

  absl::Status Load(const program::Instruction& instruction, StepId step);
  absl::Status Forward(const program::ComputePart& forward, StepId step);
  // Of a step whose F are done, before the F of the step after the next begin.
  LossShare loss_share(StepId step) const;

  std::span<std::byte> SlotBytes(SlotId slot) { return slots_.Bytes(slot); }
  // Where Forward leaves its work.
  backend::Stream* stream() const { return options_.backend->stream(); }
  // What F takes and gives.
  StageBuffers ForwardBuffers(const program::ComputePart& forward);
  LossCall LossOf(const program::ComputePart& forward, StepId step);
  // What I and W take and give.
  StageBuffers BackwardBuffers(const program::ComputePart& backward);

 private:
  struct MicrobatchLoss {
    double sum = 0;
    std::int64_t scored = 0;  // what the gradient was divided by
  };
  explicit ForwardPass(const Options& options) : options_(options) {}
  absl::Status Allocate();
  absl::Status AllocateHostMemory();
  StageBuffers ReadBuffers(const program::ComputePart& part);
  // Memory of the written slot of the part's stage, or of a neighbouring stage on this rank; null:
  // it writes none.
  float* Written(const program::ComputePart& part, program::SlotKind kind, int neighbour);
  // SlotId(-1): it reads none.
  SlotId TokensOf(const program::ComputePart& part) const;
  // Where the host writes and reads the tokens of a slot.
  std::span<std::byte> HostTokens(SlotId slot) const;
  std::span<MicrobatchLoss> LossesOf(StepId step) const;

  Options options_;
  // Its place in the kTokens slot that holds it.
  MicrobatchId InBlock(MicrobatchId m) const { return loads_microbatches_ ? MicrobatchId(0) : m; }
  std::int64_t CountScored(StepId step, std::span<const std::int32_t> targets);

  bool loads_microbatches_ = false;    // one with each LOAD, instead of all of a step
  bool updates_microbatches_ = false;  // so each gradient is the mean over its own tokens
  layout::TokenBlock tokens_;
  SlotMemory slots_;
  std::vector<backend::Buffer> host_tokens_;   // by slot; empty: the slots are host memory
  std::unique_ptr<data::TokenSource> source_;  // null: no stage here reads tokens
  // The step whose global batch LOAD has counted last.
  StepId counted_step_{0};
  std::int64_t counted_ = 0;
  // What kScalars stands for: MicrobatchLoss of two steps, since without a flush one is told while
  // the next comes in.
  backend::Buffer losses_;
};

}  // namespace takt::train
