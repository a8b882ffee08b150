// SPDX-License-Identifier: Apache-2.0
#include "common/program/merge_weight_grads.h"

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "common/program/compute_part.h"
#include "common/program/part_lists.h"

namespace takt::program {
namespace {

// Ranks that meet in every W need each of them.
bool Continues(const Program& program, const Instruction& last, const Instruction& next) {
  return PartListOf(next, program).empty() && last.op == Op::kWeightGrad &&
         next.op == Op::kWeightGrad && last.stage == next.stage &&
         last.microbatch.value() + last.num_microbatches == next.microbatch.value();
}

// next: of one microbatch.
void Add(const Program& program, const Instruction& next, Instruction& to) {
  const std::span<const SlotId> added = MicrobatchParts(next, program)[0].reads;
  const auto place =
      static_cast<std::ptrdiff_t>(added.size()) * std::ptrdiff_t{to.num_microbatches};
  to.reads.insert(to.reads.begin() + place, added.begin(), added.end());
  ++to.num_microbatches;
}

}  // namespace

bool MergeWeightGrads(Program& program) {
  std::vector<Instruction> merged;
  std::size_t last = 0;  // of the compute lane
  for (Instruction& instruction : program.body) {
    const bool computes = program.lanes[instruction.lane.value()].kind == LaneKind::kCompute;
    if (computes && !merged.empty() && Continues(program, merged[last], instruction)) {
      Add(program, instruction, merged[last]);
      continue;
    }
    if (computes) last = merged.size();
    merged.push_back(std::move(instruction));
  }
  const bool any = merged.size() < program.body.size();
  program.body = std::move(merged);
  return any;
}

}  // namespace takt::program
