// SPDX-License-Identifier: Apache-2.0
#include "worker/train/meta_run.h"

#include <memory>
#include <set>
#include <utility>

#include "common/base/status.h"
#include "common/plan/plan.h"

namespace takt::train {
namespace {

using program::Instruction;
using program::Op;

// The other ranks, who have nothing to add.
class Silence final : public transport::Collective {
 public:
  int size() const override { return 2; }
  absl::Status AllReduceSum(StepId, std::span<float>) override { return absl::OkStatus(); }
  absl::Status AllReduceSum(StepId, std::span<double>) override { return absl::OkStatus(); }
};

absl::Status Run(engine::Compute& compute, const Instruction& instruction) {
  if (instruction.op == Op::kSend || instruction.op == Op::kRecv) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::unique_ptr<engine::BoundInstruction> bound,
                   compute.Bind(instruction));
  return bound->Run(StepId(1));
}

}  // namespace

absl::StatusOr<MetaReport> RunOnMeta(TrainerOptions options, backend::OpListener listener) {
  MetaReport report;
  Silence others;
  const std::unique_ptr<backend::BackendFactory> backends =
      backend::CreateMetaBackends(report.counts, std::move(listener));
  options.backends = backends.get();
  options.shapes_only = true;
  options.observer = nullptr;
  for (const StageId stage : program::HeldStages(*options.program))
    options.replicas[stage] = &others;
  options.pp_group = options.tied_group = &others;
  ASSIGN_OR_RETURN(const std::unique_ptr<Trainer> trainer, CreateTrainer(options));
  // Instructions run in the order of the list, in which each finds what it needs.
  for (const Instruction& instruction : options.program->prologue) {
    RETURN_IF_ERROR(Run(*trainer, instruction));
  }
  for (const Instruction& instruction : options.program->body) {
    const double before = report.counts.flops;
    RETURN_IF_ERROR(Run(*trainer, instruction));
    report.flops.push_back(report.counts.flops - before);
  }
  if (options.validation_program != nullptr) {
    for (const Instruction& instruction : options.validation_program->body) {
      RETURN_IF_ERROR(Run(*trainer->validator(), instruction));
    }
  }
  // A copy, taken while the trainer holds what it counts.
  return MetaReport(report);
}

absl::Status ShowOps(const config::JobSpec& job, const mesh::Partition& partition,
                     config::DeviceKind device, const backend::OpListener& listener) {
  // Where a stage begins and ends changes no op, what it computes again does; the first microbatch
  // writes gradients that the second adds to. So two of them on one rank show everything.
  std::set<model::Recompute> modes;
  for (const mesh::Stage& stage : partition) modes.insert(stage.recompute);
  for (const model::Recompute mode : modes) {
    config::JobSpec whole = job;
    whole.global_batch = 2 * job.microbatch;
    whole.parallelism = {.pipeline = 1, .data = 1, .schedule = "gpipe", .recompute = {mode}};
    ASSIGN_OR_RETURN(const plan::Plan plan,
                     plan::MakePlan(whole, {.max_workers = 1, .device = device}));
    const bool validates = !plan.validation_programs.empty();
    const TrainerOptions options{
        .job = &whole,
        .model = &plan.model,
        .partition = &plan.partition,
        .program = &plan.programs.front(),
        .validation_program = validates ? &plan.validation_programs.front() : nullptr,
        .mesh = plan.mesh};
    RETURN_IF_ERROR(RunOnMeta(options, listener).status());
  }
  return absl::OkStatus();
}

}  // namespace takt::train
