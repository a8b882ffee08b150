// SPDX-License-Identifier: Apache-2.0
#include "common/program/split_pairs.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <utility>

#include "common/program/compute_part.h"
#include "common/program/part_lists.h"

namespace takt::program {
namespace {

Instruction HalfOf(const Instruction& overlap, const ComputePart& part) {
  Instruction half = overlap;
  half.op = part.op;
  half.stage = part.stage;
  half.microbatch = part.microbatch;
  half.backward_stage = StageId(-1);
  half.backward_microbatch = MicrobatchId(-1);
  half.reads.assign(part.reads.begin(), part.reads.end());
  half.writes.assign(part.writes.begin(), part.writes.end());
  return half;
}

bool ReadsOneVersion(const Instruction& pair, const Program& program) {
  std::set<std::int32_t> versions;
  for (const SlotId id : pair.reads) {
    const Slot& slot = program.slots[id.value()];
    if (slot.kind == SlotKind::kWeights) versions.insert(slot.version);
  }
  return versions.size() <= 1;
}

}  // namespace

PairHalves HalvesOf(const Instruction& overlap, const Program& program) {
  const OverlapParts parts = PartsOf(overlap, program);
  return {HalfOf(overlap, parts.forward), HalfOf(overlap, parts.backward)};
}

SplitProgram SplitPairs(const Program& program, Pairs pairs) {
  SplitProgram split{.program = program};
  std::vector<Instruction>& body = split.program.body;
  body.clear();
  for (std::size_t i = 0; i < program.body.size(); ++i) {
    const Instruction& instruction = program.body[i];
    const bool splits = instruction.op == Op::kOverlap &&
                        (pairs == Pairs::kAll || PartListOf(instruction, program).empty());
    if (splits) {
      PairHalves halves = HalvesOf(instruction, program);
      body.push_back(std::move(halves.forward));
      body.push_back(std::move(halves.backward));
      split.origins.push_back(static_cast<std::int32_t>(i));
    } else {
      body.push_back(instruction);
    }
    split.origins.push_back(static_cast<std::int32_t>(i));
  }
  return split;
}

bool HasPairs(const Program& program) {
  return std::ranges::count(program.body, Op::kOverlap, &Instruction::op) > 0;
}

bool PairsMeet(const Program& program) {
  return std::ranges::any_of(program.body, [&](const Instruction& instruction) {
    return instruction.op == Op::kOverlap && !PartListOf(instruction, program).empty();
  });
}

bool PairsReadOneVersion(const Program& program) {
  return std::ranges::all_of(program.body, [&](const Instruction& instruction) {
    return instruction.op != Op::kOverlap || ReadsOneVersion(instruction, program);
  });
}

}  // namespace takt::program
