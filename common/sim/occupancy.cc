// SPDX-License-Identifier: Apache-2.0
#include "common/sim/occupancy.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "common/program/slot_bytes.h"

namespace takt::sim {
namespace {

using program::Instruction;
using program::Op;
using program::Program;

// A microbatch is in flight from its F to its W or B. The F of an O begins before its B ends.
int PeakInFlight(const Program& program) {
  int in_flight = 0;
  int peak = 0;
  for (const auto* part : {&program.prologue, &program.body}) {
    for (const Instruction& instruction : *part) {
      const Op op = instruction.op;
      if (op == Op::kForward || op == Op::kOverlap) peak = std::max(peak, ++in_flight);
      if (op == Op::kWeightGrad) in_flight -= instruction.num_microbatches;
      if (op == Op::kBackward || op == Op::kOverlap) --in_flight;
    }
  }
  return peak;
}

struct Change {
  double time = 0;
  // Events at one time are in the order of the list, and an instruction takes bytes before it gives
  // any back.
  std::int64_t order = 0;
  std::int64_t bytes = 0;
  auto operator<=>(const Change&) const = default;
};

// Follows the contents of slots. Contents live from the start of the instruction that writes the
// slot without having read it, to the end of the last one that touches the slot before the next
// such write.
class Occupancy {
 public:
  Occupancy(const Program& program, const Machine& machine, MemoryKind kind)
      : program_(program), machine_(machine), kind_(kind), contents_(program.slots.size()) {}

  // Returns how the bytes in use change, by time. It is called once.
  std::vector<Change> Changes() {
    const bool any = std::ranges::any_of(program_.slots,
                                         [&](const program::Slot& slot) { return Counts(slot); });
    if (!any) return {};
    for (const Instruction& instruction : program_.prologue) Begin(instruction);
    for (std::size_t i = 0; i < program_.body.size(); ++i) Follow(static_cast<std::int32_t>(i));
    for (std::size_t slot = 0; slot < contents_.size(); ++slot) End(slot);
    std::sort(changes_.begin(), changes_.end());
    return std::move(changes_);
  }

 private:
  struct Content {
    bool there = false;
    Change leaves;
  };

  bool Counts(const program::Slot& slot) const {
    return slot.bytes > 0 && program::MemoryKindOf(slot.kind) == kind_;
  }

  // The contents that the prologue leaves are there from the start of the body.
  void Begin(const Instruction& instruction) {
    for (const SlotId id : instruction.writes) {
      const program::Slot& slot = program_.slots[id.value()];
      Content& content = contents_[id.value()];
      if (!Counts(slot) || content.there) continue;
      changes_.push_back({0, -2, slot.bytes});
      content = {true, {0, -1, -slot.bytes}};
    }
  }

  void Follow(std::int32_t i) {
    const Instruction& instruction = program_.body[i];
    const Machine::Span& span = machine_.At(0, program_.pp_rank.value(), i);
    for (const SlotId id : instruction.writes) {
      const program::Slot& slot = program_.slots[id.value()];
      const auto& reads = instruction.reads;
      if (!Counts(slot) || std::find(reads.begin(), reads.end(), id) != reads.end()) continue;
      End(id.value());
      changes_.push_back({span.start, 2 * std::int64_t{i}, slot.bytes});
      contents_[id.value()] = {true, {span.end, 2 * std::int64_t{i} + 1, -slot.bytes}};
    }
    for (const SlotId id : instruction.reads) {
      Change& leaves = contents_[id.value()].leaves;
      if (span.end < leaves.time) continue;
      leaves.time = span.end;
      leaves.order = 2 * std::int64_t{i} + 1;
    }
  }

  void End(std::size_t slot) {
    if (contents_[slot].there) changes_.push_back(contents_[slot].leaves);
    contents_[slot] = {};
  }

  const Program& program_;
  const Machine& machine_;
  const MemoryKind kind_;
  std::vector<Content> contents_;  // by slot
  std::vector<Change> changes_;
};

std::int64_t PeakBytes(const Program& program, const Machine& machine, MemoryKind kind) {
  std::int64_t bytes = 0;
  std::int64_t peak = 0;
  for (const Change& change : Occupancy(program, machine, kind).Changes()) {
    bytes += change.bytes;
    peak = std::max(peak, bytes);
  }
  return peak;
}

}  // namespace

void FindPeaks(const Program& program, const Machine& machine, RankReport& report) {
  report.peak_in_flight = PeakInFlight(program);
  report.peak_stash_bytes = PeakBytes(program, machine, MemoryKind::kStash);
  report.peak_buffer_bytes = PeakBytes(program, machine, MemoryKind::kMessages);
}

std::vector<HeldBytes> HeldOverTime(const Program& program, const Machine& machine) {
  const std::vector<Change> stash = Occupancy(program, machine, MemoryKind::kStash).Changes();
  const std::vector<Change> buffers = Occupancy(program, machine, MemoryKind::kMessages).Changes();
  std::vector<HeldBytes> held(1);
  held.reserve(1 + stash.size() + buffers.size());
  auto of_stash = stash.begin();
  auto of_buffers = buffers.begin();
  while (of_stash != stash.end() || of_buffers != buffers.end()) {
    const bool is_stash =
        of_buffers == buffers.end() || (of_stash != stash.end() && *of_stash < *of_buffers);
    const Change& change = is_stash ? *of_stash++ : *of_buffers++;
    HeldBytes next = held.back();
    next.time = change.time;
    (is_stash ? next.stash : next.buffers) += change.bytes;
    held.push_back(next);
  }
  return held;
}

}  // namespace takt::sim
