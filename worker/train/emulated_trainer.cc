// SPDX-License-Identifier: Apache-2.0
#include "worker/train/emulated_trainer.h"

#include <sys/prctl.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <ctime>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "worker/train/result_ring.h"

namespace takt::train {
namespace {

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
    for (std::size_t i = 0; i < memory_.size(); ++i) {
      switch (program_.slots[i].kind) {
        case SlotKind::kInput:
        case SlotKind::kOutput:
        case SlotKind::kOutputGrad:
        case SlotKind::kInputGrad:
          memory_[i].resize(static_cast<std::size_t>(options.model->config.activation_bytes));
          break;
        default:
          break;
      }
    }
  }

  absl::Status Run(const Instruction& instruction, StepId step) override {
    const model::ModelConfig& config = options_.model->config;
    switch (instruction.op) {
      case Op::kForward:
        return Compute(instruction, step, config.forward_seconds);
      case Op::kInputGrad:
        return Compute(instruction, step, config.input_grad_seconds);
      case Op::kWeightGrad:
        return Compute(instruction, step, config.weight_grad_seconds);
      case Op::kBackward:
        return Compute(instruction, step, config.input_grad_seconds + config.weight_grad_seconds);
      case Op::kNormExchange:
        RETURN_IF_ERROR(MeetAllRanks(step));
        results_.Put(step, MakeResult(step));
        return absl::OkStatus();
      default:
        return absl::OkStatus();
    }
  }

  std::span<std::byte> SlotBytes(SlotId slot) override { return memory_[slot.value()]; }

  StepResult result(StepId step) const override { return results_.Get(step); }
  const ParameterStore* parameters() const override { return nullptr; }
  Validator* validator() override { return nullptr; }

 private:
  absl::Status Compute(const Instruction& instruction, StepId step, double seconds_per_layer) {
    const mesh::Stage& stage = (*options_.partition)[instruction.stage.value()];
    const int num_layers = stage.last_layer.value() - stage.first_layer.value();
    const std::int32_t s = instruction.stage.value();
    const bool forward = instruction.op == Op::kForward;
    const bool input_grad = instruction.op == Op::kInputGrad || instruction.op == Op::kBackward;
    if (forward && s > 0) {
      RETURN_IF_ERROR(
          Verify(instruction, SlotKind::kInput, MakeStamp(instruction, step, s - 1, 1)));
    }
    if (input_grad && s + 1 < program_.num_stages) {
      RETURN_IF_ERROR(
          Verify(instruction, SlotKind::kOutputGrad, MakeStamp(instruction, step, s + 1, 2)));
    }
    SleepFor(std::llround(seconds_per_layer * num_layers * 1e9));
    const Stamp stamp = MakeStamp(instruction, step, s, forward ? 1 : 2);
    for (const SlotId slot : instruction.writes) {
      const SlotKind kind = program_.slots[slot.value()].kind;
      // A neighbouring stage on the same rank reads its input straight from where it is written.
      const bool carries =
          forward ? kind == SlotKind::kOutput || kind == SlotKind::kInput
                  : input_grad && (kind == SlotKind::kInputGrad || kind == SlotKind::kOutputGrad);
      std::vector<std::byte>& memory = memory_[slot.value()];
      if (carries) std::memcpy(memory.data(), &stamp, std::min(sizeof stamp, memory.size()));
    }
    return absl::OkStatus();
  }

  static Stamp MakeStamp(const Instruction& instruction, StepId step, std::int32_t stage,
                         std::int32_t direction) {
    return {.step = step.value(),
            .stage = stage,
            .microbatch = instruction.microbatch.value(),
            .direction = direction};
  }

  absl::Status Verify(const Instruction& instruction, SlotKind kind, const Stamp& expected) const {
    const SlotId slot = program::FindSlot(program_, instruction.reads, kind, instruction.stage);
    const std::vector<std::byte>& memory = memory_[slot.value()];
    const std::size_t size = std::min(sizeof expected, memory.size());
    Stamp found;
    std::memcpy(&found, memory.data(), size);
    if (std::memcmp(&found, &expected, size) == 0) return absl::OkStatus();
    return absl::InternalError(absl::StrCat(program::ToString(instruction, program_), " of step ",
                                            expected.step, " read a message that says (",
                                            found.ToString(), "), expected (", expected.ToString(),
                                            ")"));
  }

  // The barrier that NORM_EXCHANGE is, with as little to say as there can be.
  absl::Status MeetAllRanks(StepId step) const {
    for (engine::Collective* group : {options_.dp_group, options_.pp_group}) {
      if (group == nullptr) continue;
      double ranks = 1;
      RETURN_IF_ERROR(group->AllReduceSum(step, std::span<double>(&ranks, 1)));
      if (ranks != group->size()) {
        return absl::InternalError(
            absl::StrCat("step ", step.value(), ": ", ranks, " of ", group->size(), " ranks met"));
      }
    }
    return absl::OkStatus();
  }

  StepResult MakeResult(StepId step) const {
    const config::JobSpec& job = *options_.job;
    const double k = static_cast<double>(step.value());
    return {.loss = 1.0 / k,
            .grad_norm = 1.0 / std::sqrt(k),
            .learning_rate = config::LearningRate(job.adamw, job.lr_schedule, step.value()),
            .tokens = std::int64_t{job.global_batch} * std::max(1, options_.model->config.context)};
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
