// SPDX-License-Identifier: Apache-2.0
// What an entry of a lane has to do with a device: the stream it is left on, the points of streams
// that it waits for, and those that tell when it ran.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "common/program/program.h"
#include "worker/backend/stream.h"
#include "worker/engine/timing_ring.h"

namespace takt::engine {

struct Lane;

struct DevicePart {
  backend::Stream* stream = nullptr;  // null: the entry is the host's, and waits for a device
  std::vector<program::Wait> waits;   // EventWaits
  struct Points {
    std::unique_ptr<backend::Event> start, end;
  };
  // By iteration; with a stream only. A point is passed again when its step was reported.
  std::array<Points, TimingRing::kKept> points;

  const Points& PointsOf(std::uint64_t iteration) const {
    return points[iteration % TimingRing::kKept];
  }
};

// The stream on which an instruction of a lane is left; null: none.
using StreamOf = std::function<backend::Stream*(const Lane&, const program::Instruction&)>;

// Gives the entries their parts; those that have nothing to do with a device get none.
absl::Status AddDeviceParts(const program::Program& program, const StreamOf& stream_of,
                            std::vector<std::unique_ptr<Lane>>& lanes);

// Lets the part's stream, or the caller until it gives up, wait for the points that it needs in
// `iteration`. They have been recorded.
absl::Status AwaitPoints(const std::vector<std::unique_ptr<Lane>>& lanes, const DevicePart& part,
                         std::uint64_t iteration, absl::FunctionRef<bool()> gives_up);

}  // namespace takt::engine
