// SPDX-License-Identifier: Apache-2.0
// Which instructions of which ranks belong together: the two ends of a message, those who meet in a
// sum.
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

// Of one step, by sender and order of sending. The n-th SEND of a channel meets its n-th RECV.
std::vector<Message> FindMessages(const JobTrace& trace);

// Of one step: who comes to each sum over ranks; two or more, by rank.
std::vector<std::vector<Place>> FindMeetings(const JobTrace& trace);

}  // namespace takt::trace
