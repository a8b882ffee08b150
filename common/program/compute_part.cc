// SPDX-License-Identifier: Apache-2.0
#include "common/program/compute_part.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/str_cat.h"

namespace takt::program {
namespace {

bool Is(const Program& program, std::span<const SlotId> slots, std::size_t i, SlotKind kind) {
  return i < slots.size() && program.slots[slots[i].value()].kind == kind;
}

// The reads of an F end with its weights, and its writes with its stash. On the last stage scalars
// follow, or the head's input where the vocabulary is spread. No B has weights first among its
// reads, or one of these first among its writes.
std::size_t NumForwardReads(const Program& program, std::span<const SlotId> reads) {
  std::size_t i = 0;
  while (i < reads.size() && !Is(program, reads, i, SlotKind::kWeights)) ++i;
  while (Is(program, reads, i, SlotKind::kWeights)) ++i;
  return Is(program, reads, i, SlotKind::kScalars) ? i + 1 : i;
}

std::size_t NumForwardWrites(const Program& program, std::span<const SlotId> writes) {
  std::size_t i = 0;
  while (i < writes.size() && !Is(program, writes, i, SlotKind::kStash)) ++i;
  i = std::min(i + 1, writes.size());
  const bool of_head =
      Is(program, writes, i, SlotKind::kScalars) || Is(program, writes, i, SlotKind::kHeadInput);
  return of_head ? i + 1 : i;
}

}  // namespace

ComputePart WholePart(const Instruction& instruction) {
  return {instruction.op, instruction.stage, instruction.microbatch, instruction.reads,
          instruction.writes};
}

std::vector<ComputePart> MicrobatchParts(const Instruction& weight_grad, const Program& program) {
  const std::span<const SlotId> reads = weight_grad.reads;
  std::size_t num_reads = 0;
  while (num_reads < reads.size() && !Is(program, reads, num_reads, SlotKind::kWeights)) {
    ++num_reads;
  }
  const auto num_parts = static_cast<std::size_t>(weight_grad.num_microbatches);
  std::vector<ComputePart> parts;
  if (num_reads % num_parts != 0) return parts;
  const std::size_t each = num_reads / num_parts;
  for (std::size_t i = 0; i < num_parts; ++i) {
    const MicrobatchId m(weight_grad.microbatch.value() + static_cast<std::int32_t>(i));
    parts.push_back({weight_grad.op, weight_grad.stage, m, reads.subspan(i * each, each), {}});
  }
  return parts;
}

OverlapParts PartsOf(const Instruction& overlap, const Program& program) {
  const std::span<const SlotId> reads = overlap.reads, writes = overlap.writes;
  const std::size_t num_reads = NumForwardReads(program, reads);
  const std::size_t num_writes = NumForwardWrites(program, writes);
  return {.forward = {Op::kForward, overlap.stage, overlap.microbatch, reads.first(num_reads),
                      writes.first(num_writes)},
          .backward = {Op::kBackward, overlap.backward_stage, overlap.backward_microbatch,
                       reads.subspan(num_reads), writes.subspan(num_writes)}};
}

std::string ToString(const ComputePart& part) {
  return absl::StrCat(part.stage.value(), std::string(Name(part.op)), part.microbatch.value());
}

}  // namespace takt::program
