// SPDX-License-Identifier: Apache-2.0
#include "worker/train/model_trainer.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/layout/rank_layout.h"
#include "common/model/llama.h"
#include "common/program/compute_part.h"
#include "worker/backend/backend.h"
#include "worker/data/token_source.h"
#include "worker/train/forward_pass.h"
#include "worker/train/initial_weights.h"
#include "worker/train/interpreted.h"
#include "worker/train/meta_run.h"
#include "worker/train/optimizer.h"
#include "worker/train/parameter_store.h"
#include "worker/train/replays.h"
#include "worker/train/result_ring.h"
#include "worker/train/section_memory.h"
#include "worker/train/stage.h"
#include "worker/train/validator.h"

namespace takt::train {
namespace {

using backend::StreamKind;
using program::ComputePart;
using program::Instruction;
using program::Op;
using program::WholePart;

class ModelTrainer final : public Trainer {
 public:
  explicit ModelTrainer(const TrainerOptions& options)
      : options_(options),
        program_(*options.program),
        held_(program::HeldStages(*options.program)),
        asynchronous_(program::IsAsynchronous(*options.program)) {}

  // Memory goes back before the backends do: nothing may use it any more.
  ~ModelTrainer() override {
    for (backend::MemoryBackend* const backend : std::initializer_list<backend::MemoryBackend*>{
             compute_.get(), reduce_.get(), load_.get()}) {
      if (backend != nullptr) backend->Synchronize().IgnoreError();
    }
  }

  absl::Status Initialize() {
    RETURN_IF_ERROR(CheckAgreement());
    layout_ = layout::LayOutRank({.model = *options_.model,
                                  .partition = *options_.partition,
                                  .program = program_,
                                  .validation = options_.validation_program});
    RETURN_IF_ERROR(CreateBackends());
    RETURN_IF_ERROR(CreateParameters());
    RETURN_IF_ERROR(CreateStages());
    // Before weights are made, which takes longer: what is wrong with files shows sooner.
    RETURN_IF_ERROR(CreatePasses());
    if (!options_.shapes_only) RETURN_IF_ERROR(FillParameters());
    RETURN_IF_ERROR(parameters_->Pack(*compute_));
    ASSIGN_OR_RETURN(Optimizer optimizer,
                     Optimizer::Create(*options_.job, *options_.model, *parameters_, Groups()));
    optimizer_.emplace(std::move(optimizer));
    return compute_->Synchronize();
  }

  // Other lanes add and copy, which needs nothing.
  absl::Status Prepare() override {
    if (compute_->memory_is_host()) return absl::OkStatus();
    return RunOnMeta(options_, [this](const backend::Op& op) { return compute_->Prepare(op); })
        .status();
  }

  absl::StatusOr<std::unique_ptr<engine::BoundInstruction>> Bind(
      const Instruction& instruction) override {
    return std::make_unique<Interpreted<ModelTrainer>>(*this, instruction, StreamOf(instruction));
  }
  absl::Status Run(const Instruction& instruction, StepId step) {
    switch (instruction.op) {
      case Op::kLoad:
        return pass_->Load(instruction, step);
      case Op::kForward:
        SelectWeights(WholePart(instruction));
        return Forward(WholePart(instruction), step);
      case Op::kInputGrad:
        return InputGrad(WholePart(instruction));
      case Op::kWeightGrad:
        return WeightGrad(instruction);
      case Op::kBackward:
        SelectWeights(WholePart(instruction));
        return Backward(WholePart(instruction));
      case Op::kOverlap:
        return Overlap(program::PartsOf(instruction, program_), step);
      case Op::kReduceGrad:
        return ReduceGrad(instruction, step);
      case Op::kReduceTied:
        return ReduceTied(step);
      case Op::kNormPartial:
        return NormPartial();
      case Op::kNormExchange:
        return NormExchange(step);
      case Op::kOptimizer:
        return Update(instruction, step);
      case Op::kSnapshot:
        return parameters_->SpreadNewest(*compute_);
      default:
        return absl::InternalError("no rank's trainer knows " +
                                   program::ToString(instruction, program_));
    }
  }

  // What reads files is done on return, and what the host sums.
  backend::Stream* StreamOf(const Instruction& instruction) {
    const program::LaneKind lane = program_.lanes[instruction.lane.value()].kind;
    if (lane == program::LaneKind::kCompute) return compute_->stream();
    if (instruction.op == Op::kReduceTied && SumsTiedAlone()) return reduce_->stream();
    transport::Collective* const group = GroupOf(instruction);
    return group == nullptr ? nullptr : group->stream();
  }

  std::span<std::byte> SlotBytes(SlotId slot) override { return pass_->SlotBytes(slot); }
  StepResult result(StepId step) const override { return results_.Get(step); }
  ParameterStore* parameters() override { return parameters_.get(); }
  Validator* validator() override { return validator_.get(); }

 private:
  // The parts of an assignment are checked one by one where they arrive; here, that they agree.
  absl::Status CheckAgreement() const {
    const int num_stages = static_cast<int>(options_.partition->size());
    const int num_microbatches = options_.job->MicrobatchesPerStep(options_.mesh.dp_size);
    for (const program::Program* program : {options_.program, options_.validation_program}) {
      if (program == nullptr) continue;
      if (program->num_stages == num_stages && program->num_microbatches == num_microbatches)
        continue;
      return absl::InvalidArgumentError(absl::StrCat(
          "a program has ", program->num_stages, " stages and ", program->num_microbatches,
          " microbatches; its job has ", num_stages, " and ", num_microbatches));
    }
    if (asynchronous_ && options_.job->adamw.clip_norm > 0) {
      return absl::InvalidArgumentError(
          "a program without a flush has no norm of all gradients, to which its job clips");
    }
    return absl::OkStatus();
  }

  absl::Status CreateBackends() {
    ASSIGN_OR_RETURN(compute_, options_.backends->CreateCompute());
    ASSIGN_OR_RETURN(reduce_, options_.backends->CreateMemory(StreamKind::kReduce));
    ASSIGN_OR_RETURN(load_, options_.backends->CreateMemory(StreamKind::kTransfer));
    return absl::OkStatus();
  }

  absl::Status CreateParameters() {
    std::set<LayerId> second_copies;
    for (const auto& [id, stage] : layout_.stages) {
      if (program::IsPrimary(program_, id)) continue;
      for (const layout::StageLayout::LayerPlace& place : stage.layers)
        second_copies.insert(place.layer);
    }
    ASSIGN_OR_RETURN(parameters_, ParameterStore::Create(*options_.model, layout_.parameters,
                                                         *compute_, second_copies));
    return absl::OkStatus();
  }

  absl::Status FillParameters() {
    bool restored = false;
    if (options_.restore) {
      ASSIGN_OR_RETURN(restored, options_.restore(*parameters_));
    }
    if (restored) return absl::OkStatus();
    return InitializeWeights(*options_.job, options_.data_root, *parameters_, *compute_);
  }

  absl::Status CreateStages() {
    RETURN_IF_ERROR(AllocateShared());
    for (const mesh::Stage& stage : *options_.partition) {
      if (!held_.contains(stage.id)) continue;
      const auto [it, inserted] =
          stages_.try_emplace(stage.id, StageOptions{.model = *options_.model,
                                                     .stage = stage,
                                                     .parameters = *parameters_,
                                                     .backend = *compute_,
                                                     .rotary_table = rotary_table_});
      TAKT_CHECK(inserted);
      it->second.set_scratch(scratch_);
      it->second.set_observer(options_.observer);
    }
    // An observer looks on between two ops.
    const bool records = options_.records && options_.observer == nullptr && HoldsShortStages();
    replays_.emplace(records ? compute_->recorder() : nullptr);
    return absl::OkStatus();
  }

  bool HoldsShortStages() const {
    return std::ranges::all_of(*options_.partition, [this](const mesh::Stage& stage) {
      return !held_.contains(stage.id) || IsShort(*options_.model, stage);
    });
  }

  // Allocates what all stages share, and fills the rotary table.
  absl::Status AllocateShared() {
    ASSIGN_OR_RETURN(shared_, SectionMemory::Create(layout_.shared, *compute_));
    for (const layout::Tensor& tensor : layout_.shared.tensors) {
      if (tensor.role == layout::Role::kLayerScratch) scratch_ = shared_.At(tensor);
      if (tensor.role == layout::Role::kRotaryTable) rotary_table_ = shared_.FloatsAt(tensor);
    }
    if (rotary_table_ == nullptr || options_.shapes_only) return absl::OkStatus();
    const std::vector<float> table = model::RotaryTable(options_.model->config);
    RETURN_IF_ERROR(compute_->CopyFromHost(std::as_bytes(std::span(table)),
                                           reinterpret_cast<std::byte*>(rotary_table_)));
    return compute_->Synchronize();
  }

  absl::Status CreatePasses() {
    const config::JobSpec& job = *options_.job;
    const int dp_size = options_.mesh.dp_size;
    ForwardPass::Options pass{.program = options_.program,
                              .model = options_.model,
                              .slots = &layout_.slots,
                              .stages = &stages_,
                              .backend = compute_.get(),
                              .load_backend = load_.get(),
                              .tokens = data::TrainingTokens(job, options_.data_root, dp_size),
                              .dp_rank = options_.mesh.DpRankOf(options_.rank),
                              .opens_data = !options_.shapes_only};
    ASSIGN_OR_RETURN(pass_, ForwardPass::Create(pass));
    if (options_.validation_program == nullptr) return absl::OkStatus();
    pass.program = options_.validation_program;
    pass.slots = &layout_.validation_slots;
    pass.tokens = data::ValidationTokens(job, options_.data_root, dp_size);
    pass.gradient = false;
    ASSIGN_OR_RETURN(ForwardPass validation, ForwardPass::Create(pass));
    validator_ = CreateValidator(std::move(validation), Groups());
    return absl::OkStatus();
  }

  ResultGroups Groups() const {
    const mesh::Stage& last = options_.partition->back();
    return {.last_stage = ReplicasOf(last.id),
            .tells_loss = program::IsPrimary(program_, last.id),
            .pipeline = options_.pp_group};
  }

  // Null: nobody else holds the stage.
  transport::Collective* ReplicasOf(StageId stage) const {
    const auto group = options_.replicas.find(stage);
    return group == options_.replicas.end() ? nullptr : group->second;
  }

  // Whom REDUCE_GRAD and REDUCE_TIED sum with; null: nobody, or another instruction.
  transport::Collective* GroupOf(const Instruction& instruction) const {
    if (instruction.op == Op::kReduceGrad) return ReplicasOf(instruction.stage);
    return instruction.op == Op::kReduceTied ? options_.tied_group : nullptr;
  }

  absl::Status Forward(const ComputePart& part, StepId step) {
    const StageBuffers buffers = pass_->ForwardBuffers(part);
    const LossCall loss = pass_->LossOf(part, step);
    return replays_->Run(
        Arguments(
            {.op = Op::kForward, .forward_stage = part.stage, .forward = buffers, .loss = loss}),
        [&] { return stages_.at(part.stage).Forward(buffers, loss); });
  }

  absl::Status InputGrad(const ComputePart& part) {
    const StageBuffers buffers = pass_->BackwardBuffers(part);
    return replays_->Run(
        Arguments({.op = Op::kInputGrad, .backward_stage = part.stage, .backward = buffers}),
        [&] { return stages_.at(part.stage).InputGrad(buffers); });
  }

  absl::Status WeightGrad(const Instruction& instruction) {
    std::vector<StageBuffers> microbatches;
    for (const ComputePart& part : program::MicrobatchParts(instruction, program_))
      microbatches.push_back(pass_->BackwardBuffers(part));
    const bool accumulate = Accumulates(instruction.stage);
    const auto run = [&] {
      return stages_.at(instruction.stage).WeightGrad(microbatches, accumulate);
    };
    // Arguments are those of one microbatch.
    if (microbatches.size() > 1) return run();
    return replays_->Run(Arguments({.op = Op::kWeightGrad,
                                    .backward_stage = instruction.stage,
                                    .backward = microbatches.front(),
                                    .accumulate = accumulate}),
                         run);
  }

  absl::Status Backward(const ComputePart& part) {
    const StageBuffers buffers = pass_->BackwardBuffers(part);
    const bool accumulate = Accumulates(part.stage);
    return replays_->Run(Arguments({.op = Op::kBackward,
                                    .backward_stage = part.stage,
                                    .backward = buffers,
                                    .accumulate = accumulate}),
                         [&] { return stages_.at(part.stage).Backward(buffers, accumulate); });
  }

  // Completed by what no caller knows. Only an observer is told a microbatch's number.
  PartArguments Arguments(PartArguments part) const {
    part.forward.microbatch = part.backward.microbatch = MicrobatchId(0);
    part.weights = parameters_->selected_place();
    return part;
  }

  // Whether earlier W have left gradients to add to, which OPT has not seen. One call for each W.
  bool Accumulates(StageId stage) { return std::exchange(has_gradients_[stage], true); }

  // The version that the part's slots name. Only programs that flush have I and W apart or overlap;
  // they keep one.
  void SelectWeights(const ComputePart& part) {
    const SlotId weights =
        program::FindSlot(program_, part.reads, program::SlotKind::kWeights, part.stage);
    parameters_->SelectVersion(program_.slots[weights.value()].version);
  }

  // F and B take turns: a layer of one, a layer of the other. Neither touches what the other does,
  // but for weights, which both read, and scratch, which holds nothing between two layers.
  absl::Status Overlap(const program::OverlapParts& parts, StepId step) {
    const StageBuffers f = pass_->ForwardBuffers(parts.forward);
    const StageBuffers b = pass_->BackwardBuffers(parts.backward);
    const LossCall loss = pass_->LossOf(parts.forward, step);
    const bool accumulate = Accumulates(parts.backward.stage);
    Stage& forward = stages_.at(parts.forward.stage);
    Stage& backward = stages_.at(parts.backward.stage);
    const auto take_turns = [&]() -> absl::Status {
      const std::size_t turns = std::max(forward.num_layers(), backward.num_layers());
      for (std::size_t turn = 0; turn < turns; ++turn) {
        if (turn < forward.num_layers()) RETURN_IF_ERROR(forward.ForwardLayer(f, loss, turn));
        if (turn >= backward.num_layers()) continue;
        const std::size_t layer = backward.num_layers() - 1 - turn;
        RETURN_IF_ERROR(backward.BackwardLayer(b, accumulate, layer));
      }
      return absl::OkStatus();
    };
    return replays_->Run(Arguments({.op = Op::kOverlap,
                                    .forward_stage = parts.forward.stage,
                                    .backward_stage = parts.backward.stage,
                                    .forward = f,
                                    .backward = b,
                                    .loss = loss,
                                    .accumulate = accumulate}),
                         take_turns);
  }

  absl::Status ReduceGrad(const Instruction& instruction, StepId step) {
    transport::Collective* const group = GroupOf(instruction);
    if (group == nullptr) {
      return absl::InternalError(absl::StrCat(program::ToString(instruction, program_),
                                              ": no other rank holds stage ",
                                              instruction.stage.value()));
    }
    return group->AllReduceSum(step, parameters_->Layer(instruction.layer).gradients);
  }

  absl::Status ReduceTied(StepId step) {
    const ParameterStore::TiedUses uses = parameters_->tied_uses();
    if (SumsTiedAlone()) {
      return reduce_->Run(backend::Add{.a = uses.own->gradient,
                                       .b = uses.tied->gradient,
                                       .output = uses.own->gradient,
                                       .count = uses.own->parameter->elements()});
    }
    const ParameterRef& use = uses.own != nullptr ? *uses.own : *uses.tied;
    return options_.tied_group->AllReduceSum(
        step, std::span<float>(use.gradient, static_cast<std::size_t>(use.parameter->elements())));
  }

  // Whether both uses of a tied embedding are here.
  bool SumsTiedAlone() const {
    const ParameterStore::TiedUses uses = parameters_->tied_uses();
    return uses.own != nullptr && uses.tied != nullptr;
  }

  // Without a flush the next step begins before the exchange: there is no norm.
  absl::Status NormPartial() {
    return asynchronous_ ? absl::OkStatus() : optimizer_->NormPartial(*compute_);
  }

  absl::Status NormExchange(StepId step) {
    LossShare loss = pass_->loss_share(step);
    loss.halting = options_.halt_requested != nullptr && options_.halt_requested->load() ? 1 : 0;
    ASSIGN_OR_RETURN(const StepResult result, optimizer_->Exchange(step, loss));
    results_.Put(step, result);
    return absl::OkStatus();
  }

  absl::Status Update(const Instruction& instruction, StepId step) {
    for (auto& [stage, has] : has_gradients_) has = false;
    const std::int64_t m = instruction.microbatch.value();
    const std::int64_t before = step.value() - 1;
    const std::int64_t number = m >= 0 ? before * program_.num_microbatches + m : before;
    RETURN_IF_ERROR(optimizer_->Update(*compute_, step, number + 1));
    // Every kind of part has run by now.
    replays_->Start();
    return parameters_->Pack(*compute_);
  }

  // Constant after Initialize; what the pointers point to is ordered by the program's slots.
  const TrainerOptions options_;
  const program::Program& program_;
  const std::set<StageId> held_;
  const bool asynchronous_;
  layout::RankLayout layout_;
  std::unique_ptr<backend::Backend> compute_;  // of the compute lane; outlives every buffer below
  std::unique_ptr<backend::MemoryBackend> reduce_;  // of the reduce lane
  std::unique_ptr<backend::MemoryBackend> load_;    // of the load lane
  std::unique_ptr<ParameterStore> parameters_;
  SectionMemory shared_;
  std::byte* scratch_ = nullptr;
  float* rotary_table_ = nullptr;  // null: the model's family turns nothing
  std::map<StageId, Stage> stages_;
  std::optional<ForwardPass> pass_;
  std::unique_ptr<Validator> validator_;  // null: the job has no validation set
  std::optional<Optimizer> optimizer_;

  std::map<StageId, bool> has_gradients_;  // compute lane only
  std::optional<Replays> replays_;         // likewise
  ResultRing results_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Trainer>> CreateModelTrainer(const TrainerOptions& options) {
  auto trainer = std::make_unique<ModelTrainer>(options);
  RETURN_IF_ERROR(trainer->Initialize());
  return trainer;
}

}  // namespace takt::train
