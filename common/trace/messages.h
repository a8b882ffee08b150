// SPDX-License-Identifier: Apache-2.0
// Finds which instructions of which ranks belong together: the two ends of a message, or all
// instructions that meet in a sum.
#pragma once

#include <cstdint>
#include <vector>

#include "common/trace/job_trace.h"

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

// Returns the messages of one step, by sender and in the order of sending. The n-th SEND of a
// channel meets its n-th RECV.
std::vector<Message> FindMessages(const JobTrace& trace);

// Returns the meetings of one step: which instructions come to each sum over ranks. There are two
// or more of them, by rank.
std::vector<std::vector<Place>> FindMeetings(const JobTrace& trace);

}  // namespace takt::trace
