// SPDX-License-Identifier: Apache-2.0
// A lane's entry uses this of a device: the stream that gets its work, the points of streams for
// which it waits, and the points that tell when it ran.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "common/program/program.h"
#include "worker/backend/stream.h"
#include "worker/engine/part_cursor.h"
#include "worker/engine/timing_ring.h"

namespace takt::engine {

struct Lane;

struct DevicePart {
  backend::Stream* stream = nullptr;  // null: the entry is the host's, and waits for a device
  std::vector<program::Wait> waits;   // EventWaits
  struct Points {
    std::unique_ptr<backend::Event> start, end;
    std::vector<MeetingEvents> meetings;  // inside the instruction
  };
  // By iteration, if there is a stream. A point is recorded again once its step has been reported.
  std::array<Points, TimingRing::kKept> points;

  const Points& PointsOf(std::uint64_t iteration) const {
    return points[iteration % TimingRing::kKept];
  }
};

// Gives the entries their parts, by the streams of their bound instructions. An entry that has
// nothing to do with a device gets none.
absl::Status AddDeviceParts(const program::Program& program,
                            std::vector<std::unique_ptr<Lane>>& lanes);

// Makes the part's stream wait for the points that it needs in `iteration`; without a stream the
// caller waits until it gives up. The points have been recorded.
absl::Status AwaitPoints(const std::vector<std::unique_ptr<Lane>>& lanes, const DevicePart& part,
                         std::uint64_t iteration, absl::FunctionRef<bool()> gives_up);

}  // namespace takt::engine
