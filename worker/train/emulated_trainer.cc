// SPDX-License-Identifier: Apache-2.0
#include "worker/train/emulated_trainer.h"

#include <sys/prctl.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <ctime>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/layout/slot_layout.h"
#include "common/program/compute_part.h"
#include "common/program/part_lists.h"
#include "common/program/split_pairs.h"
#include "worker/engine/pair_turns.h"
#include "worker/engine/part_cursor.h"
#include "worker/train/emulated_meetings.h"
#include "worker/train/emulated_parameters.h"
#include "worker/train/result_ring.h"
#include "worker/transport/wake_word.h"

namespace takt::train {
namespace {

using engine::Bound;
using program::ComputePart;
using program::Instruction;
using program::Op;
using program::Part;
using program::SlotKind;

// The head of every message says what the message is. A shorter message has as much of it as fits.
struct Stamp {
  std::int64_t step = 0;
  std::int32_t stage = 0;  // the F or I of this stage made the message
  std::int32_t microbatch = 0;
  std::int32_t direction = 0;
  std::int32_t padding = 0;

  std::string ToString() const {
    return absl::StrCat("step ", step, ", stage ", stage, ", microbatch ", microbatch,
                        ", direction ", direction);
  }
};

// Sleeps for `nanos`, by an absolute deadline, so that waking early or late never adds up.
void SleepFor(std::int64_t nanos) {
  // Without this setting the kernel may delay a wake-up by 50 us. It is the thread's own.
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

// A message that a part reads or writes. Only the step of its stamp changes from step to step.
struct Message {
  std::span<std::byte> memory;
  Stamp stamp;
  std::string part;  // "1F3": the part that reads it
};

absl::Status Verify(const Message& message, StepId step) {
  Stamp expected = message.stamp;
  expected.step = step.value();
  const std::size_t size = std::min(sizeof expected, message.memory.size());
  Stamp found;
  std::memcpy(&found, message.memory.data(), size);
  if (std::memcmp(&found, &expected, size) == 0) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(message.part, " of step ", expected.step,
                                          " read a message that says (", found.ToString(),
                                          "), expected (", expected.ToString(), ")"));
}

// What the B of a pair needs to run beside its F.
struct EmulatedPairs {
  EmulatedPairs(transport::Collective* group, std::int64_t bytes) : meetings(group, bytes) {}

  engine::PairTurns turns;
  engine::PartCursor cursor;
  EmulatedMeetings meetings;
};

// A computation gives the turn back after this time and takes it again.
constexpr std::int64_t kLongestTurnNanos = 250'000;

// The work of one F, I, W, B or O.
struct Work {
  double seconds = 0;  // what it computes, all together
  std::vector<Message> inputs, outputs;
  std::span<const Part> parts;  // empty: it meets nobody
  std::int64_t serial = 0;      // tells it from others of its step
  engine::PartCursor* cursor = nullptr;
  EmulatedMeetings* meetings = nullptr;
  engine::PairTurns* turns = nullptr;  // null: nothing runs beside it
  engine::PairHalf half = engine::PairHalf::kForward;

  // Returns by how much longer it took.
  std::int64_t Compute(std::int64_t nanos) const {
    if (turns == nullptr) {
      SleepFor(nanos);
      return 0;
    }
    while (nanos > 0) {
      const engine::PairTurn turn(turns, half);
      const std::int64_t start = transport::MonotonicNanos();
      SleepFor(std::min(nanos, kLongestTurnNanos));
      nanos -= transport::MonotonicNanos() - start;
    }
    return -nanos;
  }

  // What it computes is spread evenly over its parts.
  absl::Status RunParts(StepId step) const {
    const auto computing = std::ranges::count_if(parts, std::not_fn(&Part::meets));
    std::int64_t too_long = 0;
    for (const Part& part : parts) {
      if (!part.meets()) {
        const std::int64_t nanos = std::llround(seconds * 1e9 / static_cast<double>(computing));
        too_long = Compute(nanos - too_long);
        continue;
      }
      RETURN_IF_ERROR(cursor->Meet(part.kind, part.group, [&] {
        return meetings->Meet(step, part.kind, 31 * step.value() + serial);
      }));
    }
    return absl::OkStatus();
  }

  absl::Status Run(StepId step) const {
    for (const Message& input : inputs) RETURN_IF_ERROR(Verify(input, step));
    if (parts.empty()) {
      Compute(std::llround(seconds * 1e9));
    } else {
      RETURN_IF_ERROR(RunParts(step));
    }
    for (const Message& output : outputs) {
      Stamp stamp = output.stamp;
      stamp.step = step.value();
      std::memcpy(output.memory.data(), &stamp, std::min(sizeof stamp, output.memory.size()));
    }
    return absl::OkStatus();
  }
};

class EmulatedTrainer final : public Trainer {
 public:
  // trained: null if the layers have no parameters.
  EmulatedTrainer(const TrainerOptions& options, std::unique_ptr<EmulatedParameters> trained)
      : options_(options),
        program_(*options.program),
        trained_(std::move(trained)),
        meetings_(options.tensor_group, options.model->config.collective_bytes) {
    if (options.pair_tensor_group != nullptr && program::PairsMeet(program_)) {
      pairs_ = std::make_unique<EmulatedPairs>(options.pair_tensor_group,
                                               options.model->config.collective_bytes);
    }
    memory_.resize(program_.slots.size());
    const layout::Section slots = layout::LayOutSlots(*options.model, /*stages=*/{}, program_);
    for (const layout::Tensor& slot : slots.tensors)
      memory_[slot.slot.value()].resize(static_cast<std::size_t>(slot.bytes));
  }

  absl::Status Prepare() override { return absl::OkStatus(); }

  Bound Bind(const Instruction& instruction) override {
    switch (instruction.op) {
      case Op::kForward:
      case Op::kInputGrad:
      case Op::kBackward:
        return BindWork(instruction, {program::WholePart(instruction)});
      case Op::kWeightGrad:
        return BindWork(instruction, program::MicrobatchParts(instruction, program_));
      case Op::kOverlap: {
        const program::OverlapParts parts = program::PartsOf(instruction, program_);
        return BindWork(instruction, {parts.forward, parts.backward});
      }
      case Op::kNormExchange:
        return engine::MakeBound(nullptr, [this](StepId step) { return Exchange(step); });
      case Op::kReduceGrad:
      case Op::kNormPartial:
      case Op::kOptimizer:
      case Op::kSpeculate:
      case Op::kGatherWeights:
      case Op::kUnshard:
      case Op::kReshard:
      case Op::kSnapshot:
        if (trained_ != nullptr) return trained_->Bind(instruction);
        return engine::NothingToDo();
      default:
        return engine::NothingToDo();
    }
  }

  std::span<std::byte> SlotBytes(SlotId slot) override { return memory_[slot.value()]; }
  engine::PartCursor* part_cursor() override { return &cursor_; }
  engine::Beside beside() override {
    if (pairs_ == nullptr) return {};
    return {.turns = &pairs_->turns, .cursor = &pairs_->cursor};
  }
  Bound BindBeside(const Instruction& backward) override {
    return BindWork(backward, {program::WholePart(backward)}, engine::PairHalf::kBackward);
  }

  StepResult result(StepId step) const override { return results_.Get(step); }
  std::vector<ExpertLoad> expert_loads(StepId /*step*/) const override { return {}; }
  double expert_imbalance(StepId /*step*/) const override { return 0; }
  ParameterStore* parameters() override { return nullptr; }
  Validator* validator() override { return nullptr; }

 private:
  // half: kBackward: it is the B of a pair and runs beside its F.
  Bound BindWork(const Instruction& instruction, const std::vector<ComputePart>& parts,
                 engine::PairHalf half = engine::PairHalf::kForward) {
    const bool beside = half == engine::PairHalf::kBackward;
    Work work{.parts = PartListOf(instruction, program_),
              .serial = 5 * instruction.microbatch.value() + static_cast<int>(instruction.op),
              .cursor = beside ? &pairs_->cursor : &cursor_,
              .meetings = beside ? &pairs_->meetings : &meetings_,
              .turns = pairs_ == nullptr ? nullptr : &pairs_->turns,
              .half = half};
    for (const ComputePart& part : parts) {
      if (part.stage.value() >= std::ssize(*options_.partition)) {
        return absl::InvalidArgumentError(
            absl::StrCat(program::ToString(part), ": the partition has no such stage"));
      }
      work.seconds += Seconds(part);
      AddMessages(part, work);
    }
    return engine::MakeBound(nullptr, [work](StepId step) { return work.Run(step); });
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

  // A neighbouring stage on the same rank reads its input directly from where it is written.
  void AddMessages(const ComputePart& part, Work& work) {
    const bool forward = part.op == Op::kForward;
    if (!forward && !PassesGradient(part.op)) return;
    const std::int32_t stage = part.stage.value();
    const SlotKind input = forward ? SlotKind::kInput : SlotKind::kOutputGrad;
    const SlotKind output = forward ? SlotKind::kOutput : SlotKind::kInputGrad;
    for (const SlotId slot : part.reads) {
      if (program_.slots[slot.value()].kind == input)
        work.inputs.push_back(MessageOf(part, slot, stage + (forward ? -1 : 1)));
    }
    for (const SlotId slot : part.writes) {
      const SlotKind kind = program_.slots[slot.value()].kind;
      if (kind == output || kind == input) work.outputs.push_back(MessageOf(part, slot, stage));
    }
  }

  // maker: the stage whose F or I makes the message.
  Message MessageOf(const ComputePart& part, SlotId slot, std::int32_t maker) {
    return {.memory = memory_[slot.value()],
            .stamp = {.stage = maker,
                      .microbatch = part.microbatch.value(),
                      .direction = part.op == Op::kForward ? 1 : 2},
            .part = program::ToString(part)};
  }

  // NORM_EXCHANGE is a barrier. Here it exchanges as little as possible: whether some rank was
  // asked to halt.
  absl::Status Exchange(StepId step) {
    if (trained_ != nullptr) RETURN_IF_ERROR(trained_->Exchange(step));
    const auto replicas = options_.replicas.begin();
    transport::Collective* const dp_group =
        replicas == options_.replicas.end() ? nullptr : replicas->second;
    double halting = WeightOf(options_.halt_requested);
    for (transport::Collective* const group : {options_.norm_group, dp_group, options_.pp_group}) {
      if (group == nullptr) continue;
      std::array<double, 2> sums{1, halting};
      RETURN_IF_ERROR(group->AllReduceSum(step, std::span<double>(sums)));
      if (sums[0] != group->size()) {
        return absl::InternalError(absl::StrCat("step ", step.value(), ": ", sums[0], " of ",
                                                group->size(), " ranks met"));
      }
      halting = sums[1];
    }
    results_.Put(step, MakeResult(step, RequestOf(halting)));
    return absl::OkStatus();
  }

  StepResult MakeResult(StepId step, HaltRequest halt) const {
    const config::JobSpec& job = *options_.job;
    const double k = static_cast<double>(step.value());
    return {.loss = 1.0 / k,
            .grad_norm = 1.0 / std::sqrt(k),
            .learning_rate = config::LearningRate(config::TraitsOf(job).learning_rate,
                                                  job.lr_schedule, step.value()),
            .tokens = std::int64_t{job.global_batch} * std::max(1, options_.model->config.context),
            .halt = halt};
  }

  const TrainerOptions options_;
  const program::Program& program_;
  const std::unique_ptr<EmulatedParameters> trained_;
  // By slot. The slots order the lanes, so one lane at a time uses each.
  std::vector<std::vector<std::byte>> memory_;
  EmulatedMeetings meetings_;
  engine::PartCursor cursor_;
  std::unique_ptr<EmulatedPairs> pairs_;  // null: halves of pairs run one after the other
  ResultRing results_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Trainer>> CreateEmulatedTrainer(const TrainerOptions& options) {
  ASSIGN_OR_RETURN(std::unique_ptr<EmulatedParameters> trained,
                   EmulatedParameters::Create(options));
  return std::make_unique<EmulatedTrainer>(options, std::move(trained));
}

}  // namespace takt::train
