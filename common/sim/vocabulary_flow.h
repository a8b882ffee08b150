// SPDX-License-Identifier: Apache-2.0
// The part of the dataflow check that is about a spread vocabulary: S, T, LOSS and the meetings.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/program/program.h"
#include "common/sim/gradient.h"
#include "common/sim/slot_contents.h"

namespace takt::sim {

// Borrows the program.
class VocabularyFlow {
 public:
  // program: passed CheckProgram.
  explicit VocabularyFlow(const program::Program& program);

  // Applies the effect of `instruction` (program::IsOfVocabulary) to the slots and to the gradients
  // of rows, by slot. Returns what is wrong with it, "" if nothing is. step: that it works for,
  // which is also how many updates its weights must have had.
  std::string Step(const program::Instruction& instruction, int step, SlotContents& contents,
                   std::vector<Gradient>& gradients) const;

  // Returns whether this is the T of the root, which adds the loss of its microbatch.
  bool MakesLoss(const program::Instruction& instruction) const;

 private:
  std::string Embed(const program::Instruction& instruction, int step,
                    SlotContents& contents) const;
  std::string Head(const program::Instruction& instruction, int step, SlotContents& contents) const;
  std::string Pass(const program::Instruction& instruction, int step, SlotContents& contents) const;
  // Returns whether all weights and gradients among the slots are the rows of this use.
  bool TouchesRows(const program::Instruction& instruction, std::int32_t use) const;
  Content Of(const program::Instruction& instruction, What what, int step) const;
  // Returns the first slot of this kind that the instruction reads, or writes; -1: none.
  SlotId Read(const program::Instruction& instruction, program::SlotKind kind) const;
  SlotId Written(const program::Instruction& instruction, program::SlotKind kind) const;

  const program::Program& program_;
  const bool has_first_, is_root_;  // holds the first stage, the last one
};

}  // namespace takt::sim
