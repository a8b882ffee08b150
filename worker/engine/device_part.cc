// SPDX-License-Identifier: Apache-2.0
#include "worker/engine/device_part.h"

#include <map>

#include "common/base/status.h"
#include "worker/engine/event_waits.h"
#include "worker/engine/lane.h"

namespace takt::engine {

absl::Status AddDeviceParts(const program::Program& program, const StreamOf& stream_of,
                            std::vector<std::unique_ptr<Lane>>& lanes) {
  std::vector<int> numbers;
  std::vector<backend::Stream*> streams;
  std::map<backend::Stream*, int> known{{nullptr, kHost}};
  for (const program::Instruction& instruction : program.body) {
    streams.push_back(stream_of(*lanes[instruction.lane.value()], instruction));
    numbers.push_back(
        known.try_emplace(streams.back(), static_cast<int>(known.size()) - 1).first->second);
  }
  if (known.size() == 1) return absl::OkStatus();
  const std::vector<std::vector<program::Wait>> waits = EventWaits(program, numbers);
  for (const auto& lane : lanes) {
    for (LaneEntry& entry : lane->entries) {
      const auto i = static_cast<std::size_t>(entry.body_index);
      if (streams[i] == nullptr && waits[i].empty()) continue;
      entry.device = std::make_unique<DevicePart>();
      entry.device->stream = streams[i];
      entry.device->waits = waits[i];
      if (streams[i] == nullptr) continue;
      for (DevicePart::Points& points : entry.device->points) {
        ASSIGN_OR_RETURN(points.start, streams[i]->CreateEvent());
        ASSIGN_OR_RETURN(points.end, streams[i]->CreateEvent());
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
