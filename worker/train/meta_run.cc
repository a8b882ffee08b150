// SPDX-License-Identifier: Apache-2.0
#include "worker/train/meta_run.h"

#include <memory>
#include <utility>

#include "common/base/status.h"

namespace takt::train {
namespace {

using program::Instruction;
using program::Op;

// Replaces the other ranks of a group. They add nothing.
class OtherRanks final : public transport::Collective {
 public:
  int size() const override { return 2; }
  int index() const override { return 0; }
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
  OtherRanks others;
  const std::unique_ptr<backend::BackendFactory> backends =
      backend::CreateMetaBackends(report.counts, std::move(listener));
  options.backends = backends.get();
  options.shapes_only = true;
  options.observer = nullptr;
  for (const StageId stage : program::HeldStages(*options.program))
    options.replicas[stage] = &others;
  if (program::SpreadsVocabulary(*options.program))
    options.replicas[StageId(options.program->num_stages)] = &others;
  options.pp_group = options.tied_group = &others;
  ASSIGN_OR_RETURN(const std::unique_ptr<Trainer> trainer, CreateTrainer(options));
  // The instructions run in the order of the list, in which each finds what it needs.
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
  // Returns a copy, made while the trainer still has the memory that is counted.
  return MetaReport(report);
}

}  // namespace takt::train
