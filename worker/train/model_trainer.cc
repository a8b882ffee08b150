// SPDX-License-Identifier: Apache-2.0
#include "worker/train/model_trainer.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "worker/backend/backend.h"
#include "worker/data/token_source.h"
#include "worker/train/initial_weights.h"
#include "worker/train/optimizer.h"
#include "worker/train/parameter_store.h"
#include "worker/train/result_ring.h"
#include "worker/train/slot_memory.h"
#include "worker/train/stage.h"
#include "worker/train/token_block.h"

namespace takt::train {
namespace {

using program::Instruction;
using program::Op;
using program::SlotKind;

class ModelTrainer final : public Trainer {
 public:
  explicit ModelTrainer(const TrainerOptions& options)
      : options_(options), program_(*options.program) {}

  absl::Status Initialize() {
    ASSIGN_OR_RETURN(compute_, backend::CreateCpuBackend({.threads = options_.threads}));
    ASSIGN_OR_RETURN(reduce_, backend::CreateCpuBackend({.threads = 1}));
    std::vector<LayerId> layers;
    for (const mesh::Stage& stage : *options_.partition) {
      if (stage.pp_rank != program_.pp_rank) continue;
      for (LayerId id = stage.first_layer; id < stage.last_layer; ++id) layers.push_back(id);
    }
    ASSIGN_OR_RETURN(parameters_, ParameterStore::Create(*options_.model, layers, *compute_));
    RETURN_IF_ERROR(InitializeWeights(*options_.job, options_.data_root, *parameters_, *compute_));
    RETURN_IF_ERROR(CreateStages());
    RETURN_IF_ERROR(CreateSlots());
    optimizer_.emplace(*options_.job, *options_.model, *parameters_,
                       Optimizer::Groups{.dp = options_.dp_group, .pp = options_.pp_group});
    return absl::OkStatus();
  }

  absl::Status Run(const Instruction& instruction, StepId step) override {
    switch (instruction.op) {
      case Op::kLoad:
        return Load(instruction, step);
      case Op::kForward:
        return Forward(instruction);
      case Op::kInputGrad:
        return InputGrad(instruction);
      case Op::kWeightGrad:
        return WeightGrad(instruction, step);
      case Op::kBackward:
        RETURN_IF_ERROR(InputGrad(instruction));
        return WeightGrad(instruction, step);
      case Op::kReduceGrad:
        return options_.dp_group->AllReduceSum(step,
                                               parameters_->Layer(instruction.layer).gradients);
      case Op::kReduceTied:
        return ReduceTied(step);
      case Op::kNormPartial:
        return optimizer_->NormPartial(*compute_);
      case Op::kNormExchange:
        return NormExchange(step);
      case Op::kOptimizer:
        return optimizer_->Update(*compute_, step);
      default:
        return absl::InternalError("no rank's trainer knows " +
                                   program::ToString(instruction, program_));
    }
  }

  std::span<std::byte> SlotBytes(SlotId slot) override { return slots_.Bytes(slot); }
  StepResult result(StepId step) const override { return results_.Get(step); }
  const ParameterStore* parameters() const override { return parameters_.get(); }

 private:
  absl::Status CreateStages() {
    std::int64_t scratch_floats = 0;
    for (const mesh::Stage& stage : *options_.partition) {
      if (stage.pp_rank != program_.pp_rank) continue;
      const auto [it, inserted] =
          stages_.try_emplace(stage.id, *options_.model, stage, *parameters_, *compute_);
      TAKT_CHECK(inserted);
      scratch_floats = std::max(scratch_floats, it->second.scratch_floats());
    }
    ASSIGN_OR_RETURN(scratch_, compute_->Allocate(scratch_floats * sizeof(float)));
    for (auto& [id, stage] : stages_) {
      stage.set_scratch(scratch_.floats());
      stage.set_observer(options_.observer);
    }
    return absl::OkStatus();
  }

  absl::Status CreateSlots() {
    const model::Model& model = *options_.model;
    const std::int64_t rows = std::int64_t{model.microbatch} * model.config.context;
    tokens_ = TokenBlock{.num_microbatches = program_.num_microbatches, .rows = rows};
    bool reads_data = false;
    const auto bytes_of = [&](const program::Slot& slot) -> std::int64_t {
      switch (slot.kind) {
        case SlotKind::kTokens:
          reads_data = true;
          return tokens_.bytes();
        case SlotKind::kInput:
        case SlotKind::kOutput:
        case SlotKind::kOutputGrad:
        case SlotKind::kInputGrad:
          return rows * model.config.hidden * static_cast<std::int64_t>(sizeof(float));
        case SlotKind::kStash:
          return stages_.at(slot.stage).stash_floats() * static_cast<std::int64_t>(sizeof(float));
        default:
          return 0;
      }
    };
    ASSIGN_OR_RETURN(slots_, SlotMemory::Create(program_, *compute_, bytes_of));
    loss_sums_.resize(program_.num_microbatches);
    if (!reads_data) return absl::OkStatus();
    ASSIGN_OR_RETURN(source_, data::TokenSource::Open(data::TrainingTokens(
                                  *options_.job, options_.data_root, options_.mesh.dp_size)));
    return absl::OkStatus();
  }

  absl::Status Load(const Instruction& instruction, StepId step) {
    const std::span<std::byte> block = slots_.Bytes(instruction.writes.front());
    for (MicrobatchId m(0); m.value() < program_.num_microbatches; ++m) {
      source_->Read(step, options_.mesh.DpRankOf(options_.rank), m, tokens_.tokens(block, m),
                    tokens_.targets(block, m));
    }
    tokens_.scored(block) = source_->CountScored(step);
    return absl::OkStatus();
  }

  absl::Status Forward(const Instruction& instruction) {
    StageBuffers buffers = ReadBuffers(instruction);
    buffers.stash = Written(instruction, SlotKind::kStash, 0);
    buffers.output = Written(instruction, SlotKind::kOutput, 0);
    if (buffers.output == nullptr) buffers.output = Written(instruction, SlotKind::kInput, +1);
    LossCall loss;
    if (instruction.stage.value() + 1 == program_.num_stages) {
      scored_ = tokens_.scored(TokensOf(instruction));
      loss = {.scale = scored_ > 0 ? static_cast<float>(1.0 / static_cast<double>(scored_)) : 0,
              .sum = &loss_sums_[instruction.microbatch.value()]};
    }
    return stages_.at(instruction.stage).Forward(buffers, loss);
  }

  absl::Status InputGrad(const Instruction& instruction) {
    StageBuffers buffers = ReadBuffers(instruction);
    buffers.d_input = Written(instruction, SlotKind::kInputGrad, 0);
    if (buffers.d_input == nullptr)
      buffers.d_input = Written(instruction, SlotKind::kOutputGrad, -1);
    return stages_.at(instruction.stage).InputGrad(buffers);
  }

  absl::Status WeightGrad(const Instruction& instruction, StepId step) {
    StepId& last = last_weight_grad_[instruction.stage];
    const bool accumulate = last == step;
    last = step;
    return stages_.at(instruction.stage).WeightGrad(ReadBuffers(instruction), accumulate);
  }

  absl::Status ReduceTied(StepId step) {
    const ParameterStore::TiedUses uses = parameters_->tied_uses();
    if (uses.own != nullptr && uses.tied != nullptr) {
      return reduce_->Run(backend::Add{.a = uses.own->gradient,
                                       .b = uses.tied->gradient,
                                       .output = uses.own->gradient,
                                       .count = uses.own->parameter->elements()});
    }
    const ParameterRef& use = uses.own != nullptr ? *uses.own : *uses.tied;
    return options_.tied_group->AllReduceSum(
        step, std::span<float>(use.gradient, static_cast<std::size_t>(use.parameter->elements())));
  }

  absl::Status NormExchange(StepId step) {
    LossShare share;
    if (stages_.contains(StageId(program_.num_stages - 1))) {
      share = {.scored = scored_, .known = true};
      for (const double sum : loss_sums_) share.sum += sum;
    }
    ASSIGN_OR_RETURN(const StepResult result, optimizer_->Exchange(step, share));
    results_.Put(step, result);
    return absl::OkStatus();
  }

  // What I and W read, and F in part.
  StageBuffers ReadBuffers(const Instruction& instruction) {
    StageBuffers buffers{.microbatch = instruction.microbatch};
    const std::span<std::byte> block = TokensOf(instruction);
    if (!block.empty()) {
      buffers.view = {.tokens = tokens_.tokens(block, instruction.microbatch).data(),
                      .targets = tokens_.targets(block, instruction.microbatch).data()};
    }
    const auto read = [&](SlotKind kind) {
      return slots_.Floats(program::FindSlot(program_, instruction.reads, kind, instruction.stage));
    };
    buffers.input = read(SlotKind::kInput);
    buffers.stash = read(SlotKind::kStash);
    buffers.d_output = read(SlotKind::kOutputGrad);
    return buffers;
  }

  // Memory of the written slot of the instruction's stage, or of a neighbouring stage on this rank.
  float* Written(const Instruction& instruction, SlotKind kind, int neighbour) {
    const StageId stage(instruction.stage.value() + neighbour);
    return slots_.Floats(program::FindSlot(program_, instruction.writes, kind, stage));
  }

  std::span<std::byte> TokensOf(const Instruction& instruction) {
    const SlotId slot =
        program::FindSlot(program_, instruction.reads, SlotKind::kTokens, StageId(-1));
    return slot.value() < 0 ? std::span<std::byte>() : slots_.Bytes(slot);
  }

  // Constant after Initialize; what the pointers point to is ordered by the program's slots.
  const TrainerOptions options_;
  const program::Program& program_;
  std::unique_ptr<backend::Backend> compute_;  // of the compute lane; outlives every buffer below
  std::unique_ptr<backend::Backend> reduce_;   // of the reduce lane
  std::unique_ptr<ParameterStore> parameters_;
  backend::Buffer scratch_;
  std::map<StageId, Stage> stages_;
  TokenBlock tokens_;
  SlotMemory slots_;
  std::unique_ptr<data::TokenSource> source_;  // null: no stage here reads tokens
  std::optional<Optimizer> optimizer_;

  // What kScalars stands for.
  std::vector<double> loss_sums_;  // by microbatch
  std::int64_t scored_ = 0;        // of the global batch

  std::map<StageId, StepId> last_weight_grad_;  // compute lane only
  ResultRing results_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Trainer>> CreateModelTrainer(const TrainerOptions& options) {
  auto trainer = std::make_unique<ModelTrainer>(options);
  RETURN_IF_ERROR(trainer->Initialize());
  return trainer;
}

}  // namespace takt::train
