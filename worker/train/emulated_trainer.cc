// SPDX-License-Identifier: Apache-2.0
#include "worker/train/emulated_trainer.h"

#include <sys/prctl.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <ctime>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/layout/slot_layout.h"
#include "common/program/compute_part.h"
#include "worker/train/interpreted.h"
#include "worker/train/result_ring.h"

namespace takt::train {
namespace {

using program::ComputePart;
using program::Instruction;
using program::Op;
using program::SlotKind;

// The head of every message: what it is. A shorter message carries as much of it as fits.
struct Stamp {
  std::int64_t step = 0;
  std::int32_t stage = 0;  // whose F or I made the message
  std::int32_t microbatch = 0;
  std::int32_t direction = 0;
  std::int32_t padding = 0;

  std::string ToString() const {
    return absl::StrCat("step ", step, ", stage ", stage, ", microbatch ", microbatch,
                        ", direction ", direction);
  }
};

// Sleeps until `nanos` after now, by an absolute deadline so that being woken early or late never
// adds up.
void SleepFor(std::int64_t nanos) {
  // The kernel may otherwise delay a wake-up by 50 us; the setting is the thread's own.
  thread_local const bool slack_is_set = prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL) == 0;
  static_cast<void>(slack_is_set);
  if (nanos <= 0) return;
  constexpr std::int64_t kNanosPerSecond = 1'000'000'000;
  timespec deadline{};
  clock_gettime(CLOCK_MONOTONIC, &deadline);
  const std::int64_t sum = deadline.tv_nsec + nanos;
  deadline.tv_sec += sum / kNanosPerSecond;
  deadline.tv_nsec = sum % kNanosPerSecond;
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &deadline, nullptr) == EINTR) {
  }
}

class EmulatedTrainer final : public Trainer {
 public:
  explicit EmulatedTrainer(const TrainerOptions& options)
      : options_(options), program_(*options.program) {
    memory_.resize(program_.slots.size());
    const layout::Section slots = layout::LayOutSlots(*options.model, /*stages=*/{}, program_);
    for (const layout::Tensor& slot : slots.tensors)
      memory_[slot.slot.value()].resize(static_cast<std::size_t>(slot.bytes));
  }

  absl::Status Prepare() override { return absl::OkStatus(); }

  absl::StatusOr<std::unique_ptr<engine::BoundInstruction>> Bind(
      const Instruction& instruction) override {
    return std::make_unique<Interpreted<EmulatedTrainer>>(*this, instruction, nullptr);
  }
  absl::Status Run(const Instruction& instruction, StepId step) {
    switch (instruction.op) {
      case Op::kForward:
      case Op::kInputGrad:
      case Op::kBackward: {
        const ComputePart part = program::WholePart(instruction);
        return Compute(std::span(&part, 1), step);
      }
      case Op::kWeightGrad:
        return Compute(program::MicrobatchParts(instruction, program_), step);
      case Op::kOverlap: {
        const program::OverlapParts parts = program::PartsOf(instruction, program_);
        return Compute(std::array{parts.forward, parts.backward}, step);
      }
      case Op::kNormExchange:
        return Exchange(step);
      default:
        return absl::OkStatus();
    }
  }

  std::span<std::byte> SlotBytes(SlotId slot) override { return memory_[slot.value()]; }

  StepResult result(StepId step) const override { return results_.Get(step); }
  ParameterStore* parameters() override { return nullptr; }
  Validator* validator() override { return nullptr; }

 private:
  // Takes as long as the parts together.
  absl::Status Compute(std::span<const ComputePart> parts, StepId step) {
    double seconds = 0;
    for (const ComputePart& part : parts) {
      RETURN_IF_ERROR(VerifyInputs(part, step));
      seconds += Seconds(part);
    }
    SleepFor(std::llround(seconds * 1e9));
    for (const ComputePart& part : parts) StampOutputs(part, step);
    return absl::OkStatus();
  }

  double Seconds(const ComputePart& part) const {
    const model::ModelConfig& config = options_.model->config;
    const mesh::Stage& stage = (*options_.partition)[part.stage.value()];
    const int num_layers = stage.last_layer.value() - stage.first_layer.value();
    switch (part.op) {
      case Op::kForward:
        return num_layers * config.forward_seconds;
      case Op::kInputGrad:
        return num_layers * config.input_grad_seconds;
      case Op::kWeightGrad:
        return num_layers * config.weight_grad_seconds;
      default:
        return num_layers * (config.input_grad_seconds + config.weight_grad_seconds);
    }
  }

  static bool PassesGradient(Op op) { return op == Op::kInputGrad || op == Op::kBackward; }

  absl::Status VerifyInputs(const ComputePart& part, StepId step) const {
    const std::int32_t s = part.stage.value();
    if (part.op == Op::kForward && s > 0) {
      return Verify(part, SlotKind::kInput, MakeStamp(part, step, s - 1, 1));
    }
    if (PassesGradient(part.op) && s + 1 < program_.num_stages) {
      return Verify(part, SlotKind::kOutputGrad, MakeStamp(part, step, s + 1, 2));
    }
    return absl::OkStatus();
  }

  void StampOutputs(const ComputePart& part, StepId step) {
    const bool forward = part.op == Op::kForward;
    const Stamp stamp = MakeStamp(part, step, part.stage.value(), forward ? 1 : 2);
    for (const SlotId slot : part.writes) {
      const SlotKind kind = program_.slots[slot.value()].kind;
      // A neighbouring stage on the same rank reads its input straight from where it is written.
      const bool carries = forward ? kind == SlotKind::kOutput || kind == SlotKind::kInput
                                   : PassesGradient(part.op) && (kind == SlotKind::kInputGrad ||
                                                                 kind == SlotKind::kOutputGrad);
      std::vector<std::byte>& memory = memory_[slot.value()];
      if (carries) std::memcpy(memory.data(), &stamp, std::min(sizeof stamp, memory.size()));
    }
  }

  static Stamp MakeStamp(const ComputePart& part, StepId step, std::int32_t stage,
                         std::int32_t direction) {
    return {.step = step.value(),
            .stage = stage,
            .microbatch = part.microbatch.value(),
            .direction = direction};
  }

  absl::Status Verify(const ComputePart& part, SlotKind kind, const Stamp& expected) const {
    const SlotId slot = program::FindSlot(program_, part.reads, kind, part.stage);
    const std::vector<std::byte>& memory = memory_[slot.value()];
    const std::size_t size = std::min(sizeof expected, memory.size());
    Stamp found;
    std::memcpy(&found, memory.data(), size);
    if (std::memcmp(&found, &expected, size) == 0) return absl::OkStatus();
    return absl::InternalError(absl::StrCat(program::ToString(part), " of step ", expected.step,
                                            " read a message that says (", found.ToString(),
                                            "), expected (", expected.ToString(), ")"));
  }

  // The barrier that NORM_EXCHANGE is, with as little to say as there can be. Whether some rank was
  // asked to halt.
  absl::StatusOr<bool> MeetAllRanks(StepId step) const {
    const auto replicas = options_.replicas.begin();
    transport::Collective* const dp_group =
        replicas == options_.replicas.end() ? nullptr : replicas->second;
    double halting = options_.halt_requested != nullptr && options_.halt_requested->load() ? 1 : 0;
    for (transport::Collective* group : {dp_group, options_.pp_group}) {
      if (group == nullptr) continue;
      std::array<double, 2> sums{1, halting};
      RETURN_IF_ERROR(group->AllReduceSum(step, std::span<double>(sums)));
      if (sums[0] != group->size()) {
        return absl::InternalError(absl::StrCat("step ", step.value(), ": ", sums[0], " of ",
                                                group->size(), " ranks met"));
      }
      halting = sums[1];
    }
    return halting > 0;
  }

  absl::Status Exchange(StepId step) {
    ASSIGN_OR_RETURN(const bool halting, MeetAllRanks(step));
    results_.Put(step, MakeResult(step, halting));
    return absl::OkStatus();
  }

  StepResult MakeResult(StepId step, bool halting) const {
    const config::JobSpec& job = *options_.job;
    const double k = static_cast<double>(step.value());
    return {.loss = 1.0 / k,
            .grad_norm = 1.0 / std::sqrt(k),
            .learning_rate = config::LearningRate(job.adamw, job.lr_schedule, step.value()),
            .tokens = std::int64_t{job.global_batch} * std::max(1, options_.model->config.context),
            .halting = halting};
  }

  const TrainerOptions options_;
  const program::Program& program_;
  std::vector<std::vector<std::byte>>
      memory_;  // by slot; each touched by one lane at a time, as the slots order
  ResultRing results_;
};

}  // namespace

std::unique_ptr<Trainer> CreateEmulatedTrainer(const TrainerOptions& options) {
  return std::make_unique<EmulatedTrainer>(options);
}

}  // namespace takt::train
