// SPDX-License-Identifier: Apache-2.0
// Derives the waits between lanes from slots. It walks the body twice, so that the second walk sees
// what the previous iteration left behind.
#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "common/program/program.h"

namespace takt::program {
namespace {

constexpr std::int32_t kNever = std::numeric_limits<std::int32_t>::min() / 2;

// The instructions that touched a slot last. Positions count on through both walks.
struct SlotHistory {
  std::int32_t writer_lane = -1;
  std::int32_t writer_position = kNever;
  absl::InlinedVector<Wait, 2> readers;  // since that write; at most one per lane
};

class Walker {
 public:
  explicit Walker(const Program& program)
      : program_(program),
        slots_(program.slots.size()),
        positions_(program.lanes.size(), 0),
        waited_(program.lanes.size(), std::vector<std::int32_t>(program.lanes.size(), kNever)),
        needed_(program.lanes.size(), kNever) {}

  // The waits of each instruction of the body, positions relative to the start of this walk.
  WaitLists Walk() {
    const std::vector<std::int32_t> start = positions_;
    WaitLists waits;
    for (const Instruction& instruction : program_.body) {
      Collect(instruction, start, waits);
      waits.End();
      Record(instruction);
    }
    return waits;
  }

 private:
  void Need(std::int32_t lane, std::int32_t position) {
    if (lane < 0) return;
    if (needed_[lane] == kNever) needed_lanes_.push_back(lane);
    needed_[lane] = std::max(needed_[lane], position);
  }

  void Collect(const Instruction& instruction, const std::vector<std::int32_t>& start,
               WaitLists& waits) {
    needed_lanes_.clear();
    for (const SlotId id : instruction.reads) {
      const SlotHistory& slot = slots_[id.value()];
      Need(slot.writer_lane, slot.writer_position);
    }
    for (const SlotId id : instruction.writes) {
      const SlotHistory& slot = slots_[id.value()];
      Need(slot.writer_lane, slot.writer_position);
      for (const Wait& reader : slot.readers) Need(reader.lane.value(), reader.position);
    }
    const std::int32_t own = instruction.lane.value();
    std::ranges::sort(needed_lanes_);
    for (const std::int32_t lane : needed_lanes_) {
      const std::int32_t position = std::exchange(needed_[lane], kNever);
      if (lane == own || position <= waited_[own][lane]) continue;
      waited_[own][lane] = position;
      waits.Add({LaneId(lane), position - start[lane]});
    }
  }

  void Record(const Instruction& instruction) {
    const std::int32_t lane = instruction.lane.value();
    const std::int32_t position = positions_[lane]++;
    for (const SlotId id : instruction.reads) {
      absl::InlinedVector<Wait, 2>& readers = slots_[id.value()].readers;
      const auto same = std::find_if(readers.begin(), readers.end(), [&](const Wait& reader) {
        return reader.lane.value() == lane;
      });
      if (same == readers.end()) {
        readers.push_back({LaneId(lane), position});
      } else {
        same->position = position;
      }
    }
    for (const SlotId id : instruction.writes) {
      SlotHistory& slot = slots_[id.value()];
      slot.writer_lane = lane;
      slot.writer_position = position;
      slot.readers.clear();
    }
  }

  const Program& program_;
  std::vector<SlotHistory> slots_;
  std::vector<std::int32_t> positions_;  // next instruction by lane
  std::vector<std::vector<std::int32_t>>
      waited_;  // [lane][other]: latest position it has waited for
  // Scratch of Collect: the positions that an instruction needs, by lane, and these lanes. It needs
  // few of all lanes.
  std::vector<std::int32_t> needed_;
  std::vector<std::int32_t> needed_lanes_;
};

}  // namespace

WaitLists Dependencies(const Program& program) {
  Walker walker(program);
  walker.Walk();
  return walker.Walk();
}

}  // namespace takt::program
