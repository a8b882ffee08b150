// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace takt::engine {

enum class PairHalf : std::uint8_t { kForward, kBackward };

// Lets the two halves of an O, which run on two threads, compute in turns. A half has the turn
// while it uses what both share: kernels, threads, the choice of weights. If both could compute,
// the half that has finished the smaller share of its meetings goes first, and the other one
// computes while the first one meets. So both end together, and each hides the meetings of the
// other one. The object also records the time in which neither computes. Outside of pairs a turn
// costs an uncontended lock. Thread-safe; each half has one thread.
class PairTurns {
 public:
  // The engine calls these around a half. meetings: how many the half has.
  void Begin(PairHalf half, std::size_t meetings);
  void End(PairHalf half);

  // Blocks: while the other half has the turn or goes first. A half that has the turn must not take
  // it again.
  void Take(PairHalf half);
  // Gives the turn back.
  void Give();

  // Call these around a meeting. If no half computed at the end of the meeting, EndMeeting returns
  // the time (MonotonicNanos) since which none did. The periods that it returns do not overlap.
  void BeginMeeting(PairHalf half);
  std::optional<std::int64_t> EndMeeting(PairHalf half);

 private:
  struct State {
    bool runs = false, meets = false;
    std::size_t met = 0, meetings = 0;
  };

  static State& Of(PairHalf half, std::array<State, 2>& states) {
    return states[static_cast<std::size_t>(half)];
  }
  // Returns whether the other half computes and goes first.
  bool Yields(PairHalf half) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // Records the time if no half computes from now on.
  void NoteIdle() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  absl::Mutex mutex_;
  std::array<State, 2> states_ ABSL_GUARDED_BY(mutex_);
  bool taken_ ABSL_GUARDED_BY(mutex_) = false;
  // Set while at least one half runs and all that run are in meetings.
  std::optional<std::int64_t> idle_since_ ABSL_GUARDED_BY(mutex_);
};

// Has the turn during its life. turns: borrowed; null: it does nothing.
class PairTurn {
 public:
  PairTurn(PairTurns* turns, PairHalf half) : turns_(turns) {
    if (turns_ != nullptr) turns_->Take(half);
  }
  ~PairTurn() {
    if (turns_ != nullptr) turns_->Give();
  }
  PairTurn(const PairTurn&) = delete;
  PairTurn& operator=(const PairTurn&) = delete;

 private:
  PairTurns* const turns_;
};

}  // namespace takt::engine
