// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>

#include "absl/status/status.h"
#include "worker/backend/stream.h"
#include "worker/engine/bind_program.h"
#include "worker/engine/timing_ring.h"
#include "worker/transport/wake_word.h"

namespace takt::engine {

// The streams on which the instructions of a program leave their work. All waits end once the time
// of GiveUpAt has passed, because a device may hang. Thread class: only the caller of Engine::Run;
// any thread may call GiveUpAt and EndWaits.
class Devices {
 public:
  // Finds the streams. Call it once, before everything else.
  absl::Status Open(const BoundProgram& program);

  // Returns whether every instruction runs on the host.
  bool none() const { return streams_.empty(); }

  // Waits until an entry that has a stream has run. timings: they get the times at which it ran;
  // null: they are not wanted.
  // Errors: those of the device; kCancelled (it gave up).
  absl::Status Await(const LaneEntry& entry, std::uint64_t iteration, TimingRing* timings) const;

  // Waits until a stream has done all that it was given. Errors: as Await.
  absl::Status Drain(backend::Stream& stream) const;

  // Drains all streams. Returns false if it gave up.
  bool DrainAll() const;

  // Makes lanes that wait for room on a stream give up.
  void EndWaits();

  // nanos: of the monotonic clock.
  void GiveUpAt(std::int64_t nanos) { give_up_nanos_.store(nanos, std::memory_order_relaxed); }

 private:
  bool GivesUp() const;

  std::map<backend::Stream*, std::unique_ptr<backend::Event>> streams_;  // the event drains it
  std::atomic<std::int64_t> give_up_nanos_{transport::kNoDeadline};
};

}  // namespace takt::engine
