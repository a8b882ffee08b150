// SPDX-License-Identifier: Apache-2.0
#include "worker/train/validator.h"

#include <array>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "worker/train/interpreted.h"

namespace takt::train {
namespace {

using program::Instruction;
using program::Op;

class ForwardValidator final : public Validator {
 public:
  ForwardValidator(ForwardPass pass, ResultGroups groups)
      : pass_(std::move(pass)), groups_(groups) {}

  absl::StatusOr<std::unique_ptr<engine::BoundInstruction>> Bind(
      const Instruction& instruction) override {
    return std::make_unique<Interpreted<ForwardValidator>>(*this, instruction,
                                                           StreamOf(instruction));
  }
  absl::Status Run(const Instruction& instruction, StepId batch) {
    switch (instruction.op) {
      case Op::kLoad:
        return pass_.Load(instruction, batch);
      case Op::kForward:
        return pass_.Forward(program::WholePart(instruction), batch);
      case Op::kEval:
        return Exchange(batch);
      default:
        return absl::InternalError(
            absl::StrCat("op ", static_cast<int>(instruction.op), " in a validation program"));
    }
  }

  backend::Stream* StreamOf(const Instruction& instruction) {
    return instruction.op == Op::kForward ? pass_.stream() : nullptr;
  }
  std::span<std::byte> SlotBytes(SlotId slot) override { return pass_.SlotBytes(slot); }
  void Reset() override { loss_sum_ = scored_ = 0; }
  double loss() const override { return scored_ > 0 ? loss_sum_ / scored_ : 0; }

 private:
  absl::Status Exchange(StepId batch) {
    ASSIGN_OR_RETURN(const LossShare told, SumOverHolders(batch, pass_.loss_share(batch), groups_));
    std::array<double, 2> sums{told.sum, static_cast<double>(told.scored)};
    if (groups_.pipeline != nullptr) {
      RETURN_IF_ERROR(groups_.pipeline->AllReduceSum(batch, std::span<double>(sums)));
    }
    loss_sum_ += sums[0];
    scored_ += sums[1];
    return absl::OkStatus();
  }

  ForwardPass pass_;
  const ResultGroups groups_;
  double loss_sum_ = 0;
  double scored_ = 0;
};

}  // namespace

std::unique_ptr<Validator> CreateValidator(ForwardPass pass, ResultGroups groups) {
  return std::make_unique<ForwardValidator>(std::move(pass), groups);
}

}  // namespace takt::train
