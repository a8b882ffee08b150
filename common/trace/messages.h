// SPDX-License-Identifier: Apache-2.0
// Finds which instructions of which ranks belong together: the two ends of a message, or all
// instructions that meet in a sum.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/trace/timeline.h"

namespace takt::trace {

// An instruction of a rank of the mesh.
struct Place {
  int rank = 0;
  std::int32_t instruction = 0;
  auto operator<=>(const Place&) const = default;
};

struct Message {
  Place send, recv;
};

// Finds where a timeline has its slices, which are ordered by rank, step and instruction. Borrows
// the trace.
class SliceIndex {
 public:
  explicit SliceIndex(const JobTrace& trace);
  std::size_t operator()(int step, Place place) const {
    const std::size_t length = trace_.ProgramOf(place.rank).body.size();
    return begin_[place.rank] + step * length + place.instruction;
  }

 private:
  const JobTrace& trace_;
  std::vector<std::size_t> begin_;  // by rank
};

// Finds where a timeline has the meetings inside its instructions. Borrows the timeline.
class MeetingIndex {
 public:
  explicit MeetingIndex(const Timeline& timeline);

  // Returns those of one instruction, in order. step: its index in the trace.
  std::span<const Slice> At(int step, Place place) const;
  // Returns those to which other ranks come with one of these, by rank, it among them.
  std::vector<const Slice*> Together(int step, const Slice& meeting) const;
  // Returns when the last of them began, and whose that is: of several, the lowest rank's.
  const Slice& Last(int step, const Slice& meeting) const;

 private:
  // Returns the ranks that meet with `rank` in a part.
  std::vector<Rank> RanksOf(Rank rank, program::PartGroup group) const;

  const Timeline& timeline_;
  const JobTrace& trace_;
  std::vector<std::vector<std::size_t>> offsets_;  // by pp rank: program::MeetingOffsets
  std::vector<std::size_t> begin_;                 // by rank
};

// Returns how long an instruction computed: without the meetings inside it.
std::int64_t ComputeNanos(const Slice& instruction, std::span<const Slice> meetings);

// Returns the messages of one step, by sender and in the order of sending. The n-th SEND of a
// channel meets its n-th RECV.
std::vector<Message> FindMessages(const JobTrace& trace);

// Returns the meetings of one step: which instructions come to each sum over ranks. There are two
// or more of them, by rank.
std::vector<std::vector<Place>> FindMeetings(const JobTrace& trace);

}  // namespace takt::trace
