// SPDX-License-Identifier: Apache-2.0
// Streams between a worker and the coordinator, as TCP shows them. Inside a stream nothing is lost,
// doubled or reordered, and each direction can stand still for a while. A stream breaks after any
// part of what was sent has arrived. Each end learns of that at another time, or never.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "tests/simulation/event_loop.h"
#include "tests/simulation/random.h"

namespace takt::simulation {

enum class End : std::uint8_t { kWorker = 0, kCoordinator = 1 };
constexpr End OtherEnd(End end) { return end == End::kWorker ? End::kCoordinator : End::kWorker; }

// The way between one worker and the coordinator.
struct Path {
  absl::Duration least_delay = absl::Milliseconds(1), most_delay = absl::Milliseconds(5);
  // By the end that sends: nothing arrives before.
  std::array<absl::Duration, 2> blocked_until = {absl::ZeroDuration(), absl::ZeroDuration()};

  absl::Duration FreeAt(End from) const { return blocked_until[static_cast<int>(from)]; }
  bool IsFree(absl::Duration now) const {
    return FreeAt(End::kWorker) <= now && FreeAt(End::kCoordinator) <= now;
  }
};

// One thread. It is kept alive by what is under way on it.
class Stream final : public std::enable_shared_from_this<Stream> {
 public:
  // All are borrowed.
  Stream(EventLoop* loop, Random* random, const Path* path)
      : loop_(*loop), random_(*random), path_(*path) {}

  // on_end: called once when this end learns that the stream is over, unless it ended it itself.
  void set_on_end(End end, std::function<void(const absl::Status&)> on_end) {
    At(end).on_end = std::move(on_end);
  }

  // Calls `deliver` when the message has arrived at the other end. The stream is alive then, so
  // `deliver` need not own it. What is sent after the end is dropped.
  void Send(End from, EventLoop::Action deliver);
  // Ends the stream from this end. The other end learns it after what was sent before.
  void Close(End from, const absl::Status& status);
  // What is under way is lost. Each end learns of it so much later; infinitely: never.
  void Break(absl::Duration worker_learns, absl::Duration coordinator_learns);
  bool IsOver(End end) const { return ends_[static_cast<int>(end)].over; }

  // The coordinator numbers the streams that it accepts. 0: it has not accepted this one.
  void set_number(std::int64_t number) { number_ = number; }
  std::int64_t number() const { return number_; }

 private:
  struct Message {
    absl::Duration due;
    EventLoop::Action deliver;
  };
  struct Side {
    std::function<void(const absl::Status&)> on_end;
    bool over = false;
    std::deque<Message> sent;  // from this end, on the way
    absl::Duration last_due = absl::ZeroDuration();
    bool pumping = false;
  };

  Side& At(End end) { return ends_[static_cast<int>(end)]; }
  void Pump(End from);
  void Learn(End end, const absl::Status& status);

  EventLoop& loop_;
  Random& random_;
  const Path& path_;
  std::array<Side, 2> ends_;
  std::int64_t number_ = 0;
  bool broken_ = false;
};

}  // namespace takt::simulation
