// SPDX-License-Identifier: Apache-2.0
// Makes the layers, loss and optimizer of one rank's stages, and binds a program's instructions to
// them. `family: emulated` gets a trainer that only takes time.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/config/job_spec.h"
#include "common/mesh/mesh.h"
#include "common/model/model.h"
#include "common/program/program.h"
#include "worker/backend/backend.h"
#include "worker/engine/compute.h"
#include "worker/train/tensor_observer.h"
#include "worker/transport/collective.h"

namespace takt::train {

class ParameterStore;

// NORM_EXCHANGE of a step fills it. It is equal on all ranks.
struct StepResult {
  double loss = 0;       // mean over the global batch's unmasked tokens
  double grad_norm = 0;  // before clipping
  double learning_rate = 0;
  std::int64_t tokens = 0;  // of the global batch
  bool halting = false;     // some rank was asked to halt before this exchange
};

struct TrainerOptions {
  const config::JobSpec* job = nullptr;  // all pointers borrowed for the trainer's life
  const model::Model* model = nullptr;
  const mesh::Partition* partition = nullptr;
  const program::Program* program = nullptr;
  const program::Program* validation_program = nullptr;  // null: the job has no validation set
  mesh::Mesh mesh;
  Rank rank;
  // Makes the backends of its lanes; null for an emulated model, which computes nothing.
  backend::BackendFactory* backends = nullptr;
  std::string data_root;  // prefix of relative paths; paths may not leave it
  // All ranks that hold a stage of this rank, in the order in which they are summed; no entry: this
  // rank alone.
  std::map<StageId, transport::Collective*> replicas;
  transport::Collective* pp_group = nullptr;  // ranks of this pipeline; null: pp_size is 1
  transport::Collective* tied_group =
      nullptr;  // ranks of the first and the last stage; null: on one rank, or not tied
  // Fills the store (weights and moments) from a checkpoint. False, or null: the trainer makes
  // initial weights. It is never called for an emulated model.
  std::function<absl::StatusOr<bool>(ParameterStore&)> restore;
  // Whether this rank was asked to halt; null: it never is. All ranks learn of it with the loss.
  const std::atomic<bool>* halt_requested = nullptr;
  const TensorObserver* observer = nullptr;  // for tests
  // Whether short parts may be recorded and replayed (replays.h).
  bool records = true;
  // True: nothing but shapes and bytes matters (meta_run.h): no file is read, no weights are made.
  bool shapes_only = false;
};

// Runs the validation program on the trainer's weights, between two Runs of the training program.
// Its "step" is the number of a global batch of the validation set, from 1.
class Validator : public engine::Compute {
 public:
  // Forgets the batches gone through.
  virtual void Reset() = 0;
  // Mean over the scored tokens of all batches since Reset; equal on all ranks.
  virtual double loss() const = 0;
};

class Trainer : public engine::Compute {
 public:
  // Makes all the room and the choices that instructions of both programs need of the device
  // (Backend::Prepare). Call it when the kernel plan is agreed on and before any channel receives:
  // the device may wait here, and must not once peers wait for it.
  virtual absl::Status Prepare() = 0;
  // Valid from the step's NORM_EXCHANGE to the next one's; read it in the engine's on_step.
  virtual StepResult result(StepId step) const = 0;
  // Weights, gradients and optimizer state; null if the model has none (emulated). Use them between
  // two Runs of the engine; gradients are those of the last step.
  virtual ParameterStore* parameters() = 0;
  // Null: there is nothing to validate (no validation program, or an emulated model).
  virtual Validator* validator() = 0;
};

// Opens data, allocates, makes initial weights.
// Errors: kInvalidArgument (what the job got wrong about its files, as a FieldError; or a program
// that is not of this job), kResourceExhausted.
absl::StatusOr<std::unique_ptr<Trainer>> CreateTrainer(const TrainerOptions& options);

}  // namespace takt::train
