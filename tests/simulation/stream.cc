// SPDX-License-Identifier: Apache-2.0
#include "tests/simulation/stream.h"

#include <algorithm>
#include <utility>

namespace takt::simulation {

void Stream::Send(End from, EventLoop::Action deliver) {
  Side& side = At(from);
  if (side.over || broken_) return;
  const absl::Duration delay = random_.Between(path_.least_delay, path_.most_delay);
  side.last_due = std::max(side.last_due, loop_.now() + delay);
  side.sent.push_back({side.last_due, std::move(deliver)});
  if (!std::exchange(side.pumping, true))
    loop_.At(side.last_due, [self = shared_from_this(), from] { self->Pump(from); });
}

void Stream::Pump(End from) {
  Side& side = At(from);
  side.pumping = false;
  while (!broken_ && !side.sent.empty()) {
    const absl::Duration due = std::max(side.sent.front().due, path_.FreeAt(from));
    if (due > loop_.now()) {
      side.pumping = true;
      loop_.At(due, [self = shared_from_this(), from] { self->Pump(from); });
      return;
    }
    const EventLoop::Action deliver = std::move(side.sent.front().deliver);
    side.sent.pop_front();
    if (!At(OtherEnd(from)).over) deliver();
  }
}

void Stream::Close(End from, const absl::Status& status) {
  Send(from, [this, from, status] { Learn(OtherEnd(from), status); });
  At(from).over = true;
}

void Stream::Break(absl::Duration worker_learns, absl::Duration coordinator_learns) {
  if (std::exchange(broken_, true)) return;
  for (const auto& [end, delay] :
       {std::pair(End::kWorker, worker_learns), std::pair(End::kCoordinator, coordinator_learns)}) {
    At(end).sent.clear();
    if (delay == absl::InfiniteDuration()) continue;
    loop_.After(delay, [self = shared_from_this(), end = end] {
      self->Learn(end, absl::UnavailableError("the connection broke"));
    });
  }
}

void Stream::Learn(End end, const absl::Status& status) {
  Side& side = At(end);
  if (std::exchange(side.over, true)) return;
  if (const auto on_end = std::exchange(side.on_end, nullptr)) on_end(status);
}

}  // namespace takt::simulation
