// SPDX-License-Identifier: Apache-2.0
#include "worker/engine/device_part.h"

#include <map>

#include "common/base/status.h"
#include "worker/engine/event_waits.h"
#include "worker/engine/lane.h"

namespace takt::engine {

absl::Status AddDeviceParts(const program::Program& program,
                            std::vector<std::unique_ptr<Lane>>& lanes) {
  std::vector<int> numbers(program.body.size());
  std::map<backend::Stream*, int> known{{nullptr, kHost}};
  for (const auto& lane : lanes) {
    for (const LaneEntry& entry : lane->entries) {
      const int next = static_cast<int>(known.size()) - 1;
      numbers[entry.body_index] = known.try_emplace(entry.bound->stream(), next).first->second;
    }
  }
  if (known.size() == 1) return absl::OkStatus();
  const std::vector<std::vector<program::Wait>> waits = EventWaits(program, numbers);
  for (const auto& lane : lanes) {
    for (LaneEntry& entry : lane->entries) {
      const std::vector<program::Wait>& its_waits = waits[entry.body_index];
      backend::Stream* const stream = entry.bound->stream();
      if (stream == nullptr && its_waits.empty()) continue;
      entry.device = std::make_unique<DevicePart>();
      entry.device->stream = stream;
      entry.device->waits = its_waits;
      if (stream == nullptr) continue;
      for (DevicePart::Points& points : entry.device->points) {
        ASSIGN_OR_RETURN(points.start, stream->CreateEvent());
        ASSIGN_OR_RETURN(points.end, stream->CreateEvent());
        for (std::size_t i = 0; i < entry.num_meetings; ++i) {
          MeetingEvents& meeting = points.meetings.emplace_back();
          ASSIGN_OR_RETURN(meeting.start, stream->CreateEvent());
          ASSIGN_OR_RETURN(meeting.end, stream->CreateEvent());
        }
      }
    }
  }
  return absl::OkStatus();
}

absl::Status AwaitPoints(const std::vector<std::unique_ptr<Lane>>& lanes, const DevicePart& part,
                         std::uint64_t iteration, absl::FunctionRef<bool()> gives_up) {
  for (const program::Wait& wait : part.waits) {
    // There is nothing to wait for before the first iteration.
    if (wait.position < 0 && iteration == 0) continue;
    const std::vector<LaneEntry>& entries = lanes[wait.lane.value()]->entries;
    const std::uint64_t of = wait.position < 0 ? iteration - 1 : iteration;
    const std::int64_t position =
        wait.position < 0 ? wait.position + std::ssize(entries) : wait.position;
    backend::Event& end = *entries[static_cast<std::size_t>(position)].device->PointsOf(of).end;
    RETURN_IF_ERROR(part.stream != nullptr ? part.stream->Await(end) : end.WaitUnless(gives_up));
  }
  return absl::OkStatus();
}

}  // namespace takt::engine
