// SPDX-License-Identifier: Apache-2.0
#include "worker/train/meta_run.h"

#include <algorithm>
#include <list>
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
  OtherRanks(int size, int index) : size_(size), index_(index) {}

  int size() const override { return size_; }
  int index() const override { return index_; }
  absl::Status AllReduceSum(StepId, std::span<float>) override { return absl::OkStatus(); }
  absl::Status AllReduceSum(StepId, std::span<double>) override { return absl::OkStatus(); }
  absl::Status AllReduceTerms(StepId, std::span<float>, const Terms&) override {
    return absl::OkStatus();
  }
  absl::Status ReduceScatterTerms(StepId, Parts, const Terms&) override { return absl::OkStatus(); }
  absl::Status ReduceScatterTree(StepId, Parts) override { return absl::OkStatus(); }
  absl::Status Pass(StepId, Sent, Received) override { return absl::OkStatus(); }

 private:
  const int size_, index_;
};

absl::Status Run(engine::Compute& compute, const Instruction& instruction) {
  if (instruction.op == Op::kSend || instruction.op == Op::kRecv) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::unique_ptr<engine::BoundInstruction> bound,
                   compute.Bind(instruction));
  return bound->Run(StepId(1));
}

}  // namespace

absl::StatusOr<MetaReport> RunOnMeta(
    TrainerOptions options, backend::OpListener listener,
    const std::function<void(const Instruction&)>& on_instruction) {
  MetaReport report;
  OtherRanks others(/*size=*/2, /*index=*/0);
  const std::unique_ptr<backend::BackendFactory> backends =
      backend::CreateMetaBackends(report.counts, std::move(listener));
  options.backends = backends.get();
  options.shapes_only = true;
  options.observer = nullptr;
  std::list<OtherRanks> replicas;  // shards depend on the size of their group
  const auto replace = [&](StageId stage) {
    transport::Collective*& group = options.replicas[stage];
    const int copies = options.program->mirror.value() < 0 ? 1 : 2;
    const int copy = program::IsPrimary(*options.program, stage) ? 0 : copies - 1;
    const int size = copies * options.mesh.num_replicas();
    const int index = copies * options.mesh.ReplicaOf(options.rank) + copy;
    group = group != nullptr ? &replicas.emplace_back(group->size(), group->index())
                             : &replicas.emplace_back(std::max(2, size), index);
  };
  for (const StageId stage : program::HeldStages(*options.program)) replace(stage);
  if (program::SpreadsVocabulary(*options.program)) replace(StageId(options.program->num_stages));
  options.pp_group = options.tied_group = &others;
  const model::TensorShare& share = options.model->tensor;
  const model::ExpertShare& experts = options.model->experts;
  OtherRanks sharing(experts.shares() ? experts.size : share.size,
                     experts.shares() ? experts.index : share.index);
  if (sharing.size() > 1) options.tensor_group = options.norm_group = &sharing;
  OtherRanks context(options.model->context_ranks, /*index=*/0);
  if (context.size() > 1) options.context_group = &context;
  ASSIGN_OR_RETURN(const std::unique_ptr<Trainer> trainer, CreateTrainer(options));
  // The instructions run in the order of the list, in which each finds what it needs.
  for (const Instruction& instruction : options.program->prologue) {
    RETURN_IF_ERROR(Run(*trainer, instruction));
  }
  for (const Instruction& instruction : options.program->body) {
    const double before = report.counts.flops;
    if (on_instruction) on_instruction(instruction);
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
