// SPDX-License-Identifier: Apache-2.0
#include "worker/engine/devices.h"

#include <cstddef>
#include <span>

#include "common/base/status.h"

namespace takt::engine {

absl::Status Devices::Open(const BoundProgram& program) {
  const auto add = [this](const BoundInstruction& bound) -> absl::Status {
    backend::Stream* const stream = bound.stream();
    if (stream == nullptr || streams_.contains(stream)) return absl::OkStatus();
    ASSIGN_OR_RETURN(streams_[stream], stream->CreateEvent());
    return absl::OkStatus();
  };
  for (const auto* list : {&program.prologue, &program.epilogue}) {
    for (const auto& bound : *list) RETURN_IF_ERROR(add(*bound));
  }
  for (const auto& lane : program.lanes) {
    for (const LaneEntry& entry : lane->entries) RETURN_IF_ERROR(add(*entry.bound));
  }
  return absl::OkStatus();
}

absl::Status Devices::Await(const LaneEntry& entry, std::uint64_t iteration,
                            TimingRing* timings) const {
  const DevicePart::Points& points = entry.device->PointsOf(iteration);
  RETURN_IF_ERROR(points.end->WaitUnless([this] { return GivesUp(); }));
  if (timings == nullptr) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::int64_t start, points.start->Nanos());
  ASSIGN_OR_RETURN(const std::int64_t end, points.end->Nanos());
  timings->SetStart(iteration, entry.body_index, start);
  timings->SetEnd(iteration, entry.body_index, end);
  const std::span<InstructionTiming> meetings =
      timings->Meetings(iteration, entry.first_meeting, entry.num_meetings);
  for (std::size_t i = 0; i < meetings.size(); ++i) {
    ASSIGN_OR_RETURN(meetings[i].start_nanos, points.meetings[i].start->Nanos());
    ASSIGN_OR_RETURN(meetings[i].end_nanos, points.meetings[i].end->Nanos());
  }
  return absl::OkStatus();
}

absl::Status Devices::Drain(backend::Stream& stream) const {
  backend::Event& end = *streams_.at(&stream);
  RETURN_IF_ERROR(stream.Record(end));
  return end.WaitUnless([this] { return GivesUp(); });
}

bool Devices::DrainAll() const {
  for (const auto& [stream, event] : streams_) {
    if (absl::IsCancelled(Drain(*stream))) return false;
  }
  return true;
}

bool Devices::GivesUp() const {
  const std::int64_t nanos = give_up_nanos_.load(std::memory_order_relaxed);
  return nanos != transport::kNoDeadline && transport::MonotonicNanos() >= nanos;
}

}  // namespace takt::engine
