// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <memory>
#include <utility>

#include "common/base/status.h"
#include "worker/data/token_source.h"
#include "worker/train/emulated_trainer.h"
#include "worker/train/initial_weights.h"
#include "worker/train/instructions/bind.h"
#include "worker/train/meta_run.h"
#include "worker/train/program_state.h"
#include "worker/train/rank_state.h"
#include "worker/train/trainer.h"

namespace takt::train {
namespace {

using program::Instruction;

class ModelValidator final : public Validator {
 public:
  explicit ModelValidator(ProgramState& state) : state_(state) {}

  Bound Bind(const Instruction& instruction) override {
    return BindInstruction(state_, instruction);
  }
  std::span<std::byte> SlotBytes(SlotId slot) override { return state_.slots.Bytes(slot); }
  engine::PartCursor* part_cursor() override { return &state_.rank.part_cursor; }
  void Reset() override { state_.evaluated = {}; }
  double loss() const override {
    const auto& [loss_sum, scored] = state_.evaluated;
    return scored > 0 ? loss_sum / scored : 0;
  }
  std::int64_t scored() const override {
    return static_cast<std::int64_t>(state_.evaluated.scored);
  }
  absl::StatusOr<std::optional<double>> bytes_per_token() const override {
    if (state_.source == nullptr) return std::nullopt;
    return state_.source->BytesPerToken();
  }

 private:
  ProgramState& state_;
};

// The trainer of models made of layers with kernels (layer.h).
class ModelTrainer final : public Trainer {
 public:
  static absl::StatusOr<std::unique_ptr<ModelTrainer>> Create(const TrainerOptions& options) {
    ASSIGN_OR_RETURN(std::unique_ptr<RankState> rank, RankState::Create(options));
    std::unique_ptr<ModelTrainer> trainer(new ModelTrainer(std::move(rank)));
    // Token files are opened before weights are made, which takes longer, so that errors in files
    // show sooner.
    RETURN_IF_ERROR(trainer->CreatePrograms());
    if (!options.shapes_only) RETURN_IF_ERROR(trainer->FillParameters());
    RETURN_IF_ERROR(trainer->CreateOptimizer());
    return trainer;
  }

  // Waits for all lanes, because memory is freed before the backends are destroyed.
  ~ModelTrainer() override {
    rank_->compute->Synchronize().IgnoreError();
    rank_->reduce->Synchronize().IgnoreError();
    rank_->load->Synchronize().IgnoreError();
  }

  // The lanes that only move and add need no preparation.
  absl::Status Prepare() override {
    backend::Backend& compute = *rank_->compute;
    if (compute.memory_is_host()) return absl::OkStatus();
    return RunOnMeta(options(), [&](const backend::Op& op) { return compute.Prepare(op); })
        .status();
  }

  absl::Status Gather() override {
    // A rank that frees weights gathers them in each step.
    const bool keeps = rank_->shards != nullptr && !rank_->parameters->frees();
    return keeps ? rank_->shards->GatherAll() : absl::OkStatus();
  }

  Bound Bind(const Instruction& instruction) override {
    return BindInstruction(*training_, instruction);
  }
  std::span<std::byte> SlotBytes(SlotId slot) override { return training_->slots.Bytes(slot); }
  engine::PartCursor* part_cursor() override { return &rank_->part_cursor; }
  engine::Beside beside() override {
    return rank_->pair == nullptr ? engine::Beside() : rank_->pair->beside();
  }
  Bound BindBeside(const Instruction& backward) override {
    return train::BindBeside(*training_, backward);
  }
  bool HoldsIn(StepId step) override { return rank_->foresight.HoldsIn(step); }
  bool ForesawWrongly(StepId step) override { return rank_->results.Get(step).undone; }
  StepResult result(StepId step) const override { return rank_->results.Get(step); }
  std::vector<ExpertLoad> expert_loads(StepId step) const override {
    return training_->expert_counts.Loads(step);
  }
  double expert_imbalance(StepId step) const override {
    return training_->expert_counts.Imbalance(step);
  }
  ParameterStore* parameters() override { return rank_->parameters.get(); }
  Validator* validator() override { return validator_.get(); }

 private:
  explicit ModelTrainer(std::unique_ptr<RankState> rank) : rank_(std::move(rank)) {}
  const TrainerOptions& options() const { return rank_->options; }

  absl::Status CreatePrograms() {
    const config::JobSpec& job = *options().job;
    const int dp_size = options().mesh.dp_size;
    ASSIGN_OR_RETURN(
        training_,
        ProgramState::Create(
            *rank_, {.program = options().program,
                     .slots = &rank_->layout.slots,
                     .tokens = worker_data::TrainingTokens(job, options().data_root, dp_size),
                     .recorder = Records() ? rank_->compute->recorder() : nullptr}));
    if (options().validation_program == nullptr) return absl::OkStatus();
    ASSIGN_OR_RETURN(validation_,
                     ProgramState::Create(*rank_, {.program = options().validation_program,
                                                   .slots = &rank_->layout.validation_slots,
                                                   .tokens = worker_data::ValidationTokens(
                                                       job, options().data_root, dp_size),
                                                   .trains = false}));
    validator_ = std::make_unique<ModelValidator>(*validation_);
    return absl::OkStatus();
  }

  // An observer must see each op by itself, and other ranks cannot be met in a recording.
  bool Records() const {
    return options().records && options().observer == nullptr && rank_->meetings == nullptr &&
           rank_->experts == nullptr && rank_->context == nullptr &&
           std::ranges::all_of(*options().partition, [this](const mesh::Stage& stage) {
             return !rank_->stages.contains(stage.id) || IsShort(*options().model, stage);
           });
  }

  absl::Status FillParameters() {
    bool restored = false;
    if (options().restore) {
      ASSIGN_OR_RETURN(restored, options().restore(*rank_->parameters));
    }
    if (restored) return absl::OkStatus();
    return InitializeWeights(*options().job, options().data_root, *rank_->parameters,
                             *rank_->compute);
  }

  absl::Status CreateOptimizer() {
    RETURN_IF_ERROR(rank_->parameters->Pack(*rank_->compute));
    ASSIGN_OR_RETURN(Optimizer optimizer, Optimizer::Create(*options().job, *options().model,
                                                            *rank_->parameters, rank_->Groups()));
    rank_->optimizer.emplace(std::move(optimizer));
    rank_->optimizer->ShareWith(rank_->shards.get());
    rank_->optimizer->UseScratch(rank_->scratch);
    return rank_->compute->Synchronize();
  }

  const std::unique_ptr<RankState> rank_;
  std::unique_ptr<ProgramState> training_;
  std::unique_ptr<ProgramState> validation_;  // null: the job has no validation set
  std::unique_ptr<Validator> validator_;      // null: the job has no validation set
};

}  // namespace

absl::StatusOr<std::unique_ptr<Trainer>> CreateTrainer(const TrainerOptions& options) {
  if (options.model->config.family == model::Family::kEmulated)
    return CreateEmulatedTrainer(options);
  return ModelTrainer::Create(options);
}

}  // namespace takt::train
