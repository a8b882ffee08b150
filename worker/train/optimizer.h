// SPDX-License-Identifier: Apache-2.0
// The end of a step on one rank: sums of squares, the exchange of norm and loss between ranks,
// clipping and the update of the weights by AdamW, Lion, SGD or Muon.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/id.h"
#include "common/config/job_spec.h"
#include "common/config/parameter_groups.h"
#include "common/model/model.h"
#include "worker/backend/backend.h"
#include "worker/train/loss_share.h"
#include "worker/train/parameter_store.h"
#include "worker/train/shard_state.h"
#include "worker/train/tensor_meetings.h"
#include "worker/train/trainer.h"

namespace takt::train {

// In a step with a flush, the calls come one at a time, in the order NormPartial, Exchange, Update,
// on any thread. Where steps overlap, Foresee comes after NormPartial, and may run at the same time
// as Exchange unless it knows the norm. Without a flush there is no norm, hence no NormPartial and
// no clipping; Exchange only exchanges the loss then, and may run at the same time as Update.
class Optimizer {
 public:
  // All arguments are borrowed. Errors: kResourceExhausted.
  static absl::StatusOr<Optimizer> Create(const config::JobSpec& job, const model::Model& model,
                                          ParameterStore& parameters, ResultGroups groups);

  // Lends it memory for Muon's updates (model::MuonScratchFloats of the largest matrix), or for
  // sums over ranks that split layers (TensorMeetings::SumOverHolders). Only the lane that calls
  // NormPartial and Update uses it.
  void UseScratch(std::byte* scratch) { scratch_ = reinterpret_cast<float*>(scratch); }

  // From now on the rank computes and updates its shards alone. shards: borrowed.
  void ShareWith(ShardState* shards) { shards_ = shards; }

  // Computes the sums of squares of every parameter whose gradient this rank counts: one a
  // parameter, or one for each block of words or each piece. Each parameter is counted once in a
  // pipeline. The sums exist once `backend` has done what it was given.
  // meetings: set where ranks split layers. They first add up the gradients of what is not split.
  absl::Status NormPartial(backend::Backend& backend, TensorMeetings* meetings = nullptr);

  // Exchanges loss and norm. Every entry of the exchanged vector comes from one rank and is zero
  // elsewhere, so its sum over the pipeline, and over the ranks that split layers, is exact. The
  // norm is added up in the model's parameter order, and block by block or piece by piece. So it is
  // the same for every partition.
  absl::StatusOr<StepResult> Exchange(StepId step, const LossShare& loss);

  // Updates all parameters of the rank by the job's optimizer, each at the rate and decay of its
  // group (common/config/parameter_groups.h), with gradients scaled by min(1, clip_norm /
  // (grad_norm + 1e-6)), and feeds errors back if the job says so. Biases that balance experts move
  // by a fixed rate instead. Makes version 0 of the weights and selects it. number: of the update,
  // from 1, for AdamW's bias correction. The learning rate is the step's.
  absl::Status Update(backend::Backend& backend, StepId step, std::int64_t number);

  // Makes the foreseen weights (ParameterStore::BeginForesight), but for those of rows, and selects
  // them: what Update will make of these gradients if nothing is clipped, or, with knows_norm,
  // after Exchange, what it will make. Everything else stays.
  absl::Status Foresee(backend::Backend& backend, StepId step, std::int64_t number,
                       bool knows_norm);
  // Does so with the rows of the embedding. rows: of ParameterStore::ForeseenRows. It may run at
  // the same time as NormPartial, Foresee and, unless it knows the norm, Exchange.
  absl::Status ForeseeRows(backend::Backend& backend, const ParameterRef& rows, StepId step,
                           std::int64_t number, bool knows_norm) const;

  // Returns the factor by which Update scales gradients. Call it after Exchange.
  double ClipFactor() const;

 private:
  Optimizer(const config::JobSpec& job, ParameterStore& parameters, ResultGroups groups,
            backend::Buffer exchanged);
  // Has what all updates of one step have in common. The arguments of Update are described there.
  struct Step {
    std::int64_t number = 1;
    double learning_rate = 0;
    double gradient_scale = 1;
    bool foresees = false;
  };
  Step StepOf(StepId step, std::int64_t number, double gradient_scale) const;
  Step ForeseenStep(StepId step, std::int64_t number, bool knows_norm) const;
  // Writes the selected weights.
  absl::Status UpdateAll(backend::Backend& backend, const Step& step);
  // Moves the biases by which routers balance experts.
  absl::Status UpdateBiases(backend::Backend& backend) const;
  // Corrects what the step before has updated by gradients that were a step late.
  absl::Status FeedErrorsBack(backend::Backend& backend) const;
  // Adds up the gradients that leaves have of what they share.
  absl::Status SumLeafGradients(backend::Backend& backend, TensorMeetings& meetings) const;
  // Updates one matrix.
  absl::Status UpdateByMuon(backend::Backend& backend, const ParameterRef& ref, const Step& step);
  // Returns what an update element by element has of a parameter.
  backend::UpdatedTensor TensorOf(const ParameterRef& ref) const;
  // Updates tensors element by element.
  absl::Status UpdateElements(backend::Backend& backend,
                              std::span<const backend::UpdatedTensor> tensors,
                              const Step& step) const;
  // Returns the parameters of which the rank updates all, or its shard.
  std::vector<const ParameterRef*> UpdatedParts() const {
    return shards_ != nullptr ? shards_->Parts() : parameters_.trained();
  }
  std::span<double> exchanged() const {
    return {reinterpret_cast<double*>(exchanged_.data()), exchanged_.bytes() / sizeof(double)};
  }

  const config::JobSpec& job_;
  ParameterStore& parameters_;
  const ResultGroups groups_;
  // Says whether the norm counts what this rank has beside experts. Of ranks that share experts,
  // the first one counts what all of them have.
  const bool counts_copies_;
  std::map<const model::Parameter*, config::UpdateSettings> settings_;  // of all that it trains
  ShardState* shards_ = nullptr;  // null: the rank has the optimizer's state of all it trains
  float* scratch_ = nullptr;
  // [sums of squares by parameter and block..., loss sum, scored tokens, weights of halts]
  backend::Buffer exchanged_;
  StepResult result_;
};

}  // namespace takt::train
