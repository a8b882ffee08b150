// SPDX-License-Identifier: Apache-2.0
// When the instructions of the last iterations ran. Each lane writes its own times while it runs;
// status lines and the flight recorder read them meanwhile.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "worker/engine/instruction_timing.h"

namespace takt::engine {

// It keeps iteration i until i + kKept begins.
class TimingRing {
 public:
  // Steps that may be under way while the report of one before them is still being made.
  static constexpr std::uint64_t kKept = 2;

  // num_meetings: inside the instructions of the body.
  TimingRing(std::size_t body_size, std::size_t num_meetings) {
    for (std::vector<InstructionTiming>& timings : kept_) timings.resize(body_size);
    for (std::vector<InstructionTiming>& timings : meetings_) timings.resize(num_meetings);
  }

  // The lane's own thread calls these.
  void SetStart(std::uint64_t iteration, std::size_t body_index, std::int64_t nanos) {
    Store(At(iteration, body_index).start_nanos, nanos);
  }
  void SetEnd(std::uint64_t iteration, std::size_t body_index, std::int64_t nanos) {
    Store(At(iteration, body_index).end_nanos, nanos);
  }

  // The threads of the compute lane write these, each for its own instruction, and so does Devices
  // once the iteration is done. No other thread does.
  std::span<InstructionTiming> Meetings(std::uint64_t iteration, std::size_t first,
                                        std::size_t count) {
    return std::span(meetings_[iteration % kKept]).subspan(first, count);
  }

  // Valid once the whole iteration is done, until it may be overwritten.
  const std::vector<InstructionTiming>& Of(std::uint64_t iteration) const {
    return kept_[iteration % kKept];
  }
  const std::vector<InstructionTiming>& MeetingsOf(std::uint64_t iteration) const {
    return meetings_[iteration % kKept];
  }

  // May be called at any time: a start or an end may be that of iteration - kKept or of
  // iteration + kKept.
  InstructionTiming Peek(std::uint64_t iteration, std::size_t body_index) const {
    const InstructionTiming& timing = kept_[iteration % kKept][body_index];
    return {Load(timing.start_nanos), Load(timing.end_nanos)};
  }

 private:
  InstructionTiming& At(std::uint64_t iteration, std::size_t body_index) {
    return kept_[iteration % kKept][body_index];
  }
  // A reader that peeks looks afterwards how far the lane has come. Release and acquire order this:
  // if it saw the time of a later iteration, it also sees that the lane had come to that iteration.
  static void Store(std::int64_t& to, std::int64_t nanos) {
    std::atomic_ref(to).store(nanos, std::memory_order_release);
  }
  static std::int64_t Load(const std::int64_t& from) {
    return std::atomic_ref(const_cast<std::int64_t&>(from)).load(std::memory_order_acquire);
  }

  std::array<std::vector<InstructionTiming>, kKept> kept_, meetings_;
};

}  // namespace takt::engine
