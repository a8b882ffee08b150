// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "common/program/program.h"
#include "worker/backend/stream.h"
#include "worker/engine/bound_instruction.h"

namespace takt::train {

// An instruction that `Owner::Run` still looks at in each step.
template <typename Owner>
class Interpreted final : public engine::BoundInstruction {
 public:
  Interpreted(Owner& owner, const program::Instruction& instruction, backend::Stream* stream)
      : BoundInstruction(stream), owner_(owner), instruction_(instruction) {}
  absl::Status Run(StepId step) override { return owner_.Run(instruction_, step); }

 private:
  Owner& owner_;
  const program::Instruction& instruction_;
};

}  // namespace takt::train
