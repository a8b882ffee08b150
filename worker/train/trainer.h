// SPDX-License-Identifier: Apache-2.0
// Makes the layers, loss and optimizer of one rank's stages, and binds a program's instructions to
// them. `family: emulated` gets a trainer that only takes time.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/config/job_spec.h"
#include "common/mesh/mesh.h"
#include "common/mesh/vocabulary_split.h"
#include "common/model/model.h"
#include "common/program/program.h"
#include "worker/backend/backend.h"
#include "worker/engine/compute.h"
#include "worker/train/expert_counts.h"
#include "worker/train/halt_request.h"
#include "worker/train/tensor_observer.h"
#include "worker/transport/collective.h"

namespace takt::train {

class ParameterStore;

// The result of a step. NORM_EXCHANGE fills it. It is equal on all ranks.
struct StepResult {
  double loss = 0;       // mean over the global batch's unmasked tokens
  double grad_norm = 0;  // before clipping
  double learning_rate = 0;
  std::int64_t tokens = 0;  // of the global batch
  // What some rank was asked for before this exchange.
  HaltRequest halt = HaltRequest::kNone;
  // Where steps overlap (foresight.h): whether the step waited for its norm before it made the
  // weights of the next forwards, and whether it foresaw them wrongly, so that these run again.
  bool held = false, undone = false;
};

struct TrainerOptions {
  const config::JobSpec* job = nullptr;  // all pointers are borrowed for the trainer's life
  const model::Model* model = nullptr;
  const mesh::Partition* partition = nullptr;
  const program::Program* program = nullptr;
  const program::Program* validation_program = nullptr;  // null: the job has no validation set
  mesh::Mesh mesh;
  Rank rank;
  mesh::VocabularyEnds vocabulary_ends;  // empty: the vocabulary is not spread
  // Makes the backends of its lanes; null for an emulated model, which computes nothing.
  backend::BackendFactory* backends = nullptr;
  std::string data_root;  // prefix of relative paths; paths may not leave it
  // All ranks that hold a stage of this rank, in the order in which they are summed. No entry: only
  // this rank holds it.
  std::map<StageId, transport::Collective*> replicas;
  // Those of them that have the same experts, where ranks share experts (expert_gradients.h). No
  // entry: only this rank has them.
  std::map<StageId, transport::Collective*> expert_holders;
  transport::Collective* pp_group = nullptr;  // ranks of this pipeline; null: pp_size is 1
  // The ranks of the first and the last stage. Null: one rank has both, or nothing is tied.
  transport::Collective* tied_group = nullptr;
  // The ranks of this pipeline, where they meet over a spread vocabulary; else null.
  transport::Collective* vocabulary_group = nullptr;
  // The ranks that share this rank's layers, or its experts, for meetings on the compute lane, in
  // memory of `backends`. Null: it shares none.
  transport::Collective* tensor_group = nullptr;
  // The same ranks, for the exchange of norm and loss, which is not on that lane.
  transport::Collective* norm_group = nullptr;
  // The ranks that share this rank's sequences, for meetings on the compute lane. Null: it shares
  // none.
  transport::Collective* context_group = nullptr;
  // The ranks of tensor_group and context_group again, for the B of a pair that runs beside its F.
  // Null: the two run one after the other.
  transport::Collective* pair_tensor_group = nullptr;
  transport::Collective* pair_context_group = nullptr;
  // Fills the store (weights and moments) from a checkpoint. If it returns false, or is null, the
  // trainer makes initial weights. It is never called for an emulated model.
  std::function<absl::StatusOr<bool>(ParameterStore&)> restore;
  // Whether this rank was asked to halt; null: it never is. All ranks learn of it with the loss.
  const std::atomic<HaltRequest>* halt_requested = nullptr;
  const TensorObserver* observer = nullptr;  // for tests
  // Whether short parts may be recorded and replayed (replays.h).
  bool records = true;
  // True: only shapes and bytes matter (meta_run.h), so no file is read and no weights are made.
  bool shapes_only = false;
};

// Runs the validation program on the trainer's weights, between two Runs of the training program.
// Its "step" is the number of a global batch of the validation set, from 1.
class Validator : public engine::Compute {
 public:
  // Forgets the batches of the validation before.
  virtual void Reset() = 0;
  // Returns the mean over the scored tokens of all batches since Reset. It is equal on all ranks.
  virtual double loss() const = 0;
  // Returns how many tokens these are.
  virtual std::int64_t scored() const = 0;
  // Returns how many bytes of text a token of the validation set stands for. nullopt: its files do
  // not say it, or this rank does not read them. Errors: as data::BytesPerToken.
  virtual absl::StatusOr<std::optional<double>> bytes_per_token() const = 0;
};

class Trainer : public engine::Compute {
 public:
  // Prepares the device for the instructions of both programs (Backend::Prepare): it allocates
  // memory and makes choices. Call it after the kernel plan was agreed on and before any channel
  // receives. The device may wait here, but must not wait once peers wait for it.
  virtual absl::Status Prepare() = 0;
  // Gathers the weights of which this rank has filled or loaded a shard. All ranks call it once,
  // when all have loaded and before the first instruction.  Blocks: until those that share with
  // this rank do the same.  Errors: as their groups', those of the device.
  virtual absl::Status Gather() { return absl::OkStatus(); }
  // Valid from the step's NORM_EXCHANGE to the next one's; read it in the engine's on_step.
  virtual StepResult result(StepId step) const = 0;
  // Returns how the experts of this rank's blocks were loaded; there may be none. Read it likewise.
  virtual std::vector<ExpertLoad> expert_loads(StepId step) const = 0;
  // Returns ExpertCounts::Imbalance. Read it likewise.
  virtual double expert_imbalance(StepId step) const = 0;
  // Returns weights, gradients and optimizer state, or null if the model has none (emulated). Use
  // them between two Runs of the engine. The gradients are those of the last step.
  virtual ParameterStore* parameters() = 0;
  // Returns null if there is nothing to validate (no validation program, or an emulated model).
  virtual Validator* validator() = 0;
};

// Opens data, allocates memory and makes initial weights.
// Errors: kInvalidArgument (what the job got wrong about its files, as a FieldError; or a program
// that does not belong to this job), kResourceExhausted.
absl::StatusOr<std::unique_ptr<Trainer>> CreateTrainer(const TrainerOptions& options);

}  // namespace takt::train
