// SPDX-License-Identifier: Apache-2.0
#include "worker/engine/pair_turns.h"

#include <algorithm>

#include "worker/transport/wake_word.h"

namespace takt::engine {

using transport::MonotonicNanos;

void PairTurns::Begin(PairHalf half, std::size_t meetings) {
  absl::MutexLock lock(&mutex_);
  Of(half, states_) = {.runs = true, .meetings = meetings};
  idle_since_.reset();
}

void PairTurns::End(PairHalf half) {
  absl::MutexLock lock(&mutex_);
  Of(half, states_) = {};
  NoteIdle();
}

void PairTurns::Take(PairHalf half) {
  absl::MutexLock lock(&mutex_);
  const auto is_next = [this, half]()
                           ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return !taken_ && !Yields(half); };
  mutex_.Await(absl::Condition(&is_next));
  taken_ = true;
}

void PairTurns::Give() {
  absl::MutexLock lock(&mutex_);
  taken_ = false;
}

void PairTurns::BeginMeeting(PairHalf half) {
  absl::MutexLock lock(&mutex_);
  Of(half, states_).meets = true;
  NoteIdle();
}

std::optional<std::int64_t> PairTurns::EndMeeting(PairHalf half) {
  absl::MutexLock lock(&mutex_);
  State& state = Of(half, states_);
  state.meets = false;
  ++state.met;
  const std::optional<std::int64_t> since = idle_since_;
  idle_since_.reset();
  return since;
}

bool PairTurns::Yields(PairHalf half) const {
  const auto share = [](const State& state) {
    return state.meetings == 0
               ? 1.0
               : static_cast<double>(state.met) / static_cast<double>(state.meetings);
  };
  const auto index = static_cast<std::size_t>(half);
  const State& mine = states_[index];
  const State& other = states_[1 - index];
  if (!other.runs || other.meets) return false;
  // The backward goes first if the shares are equal, because it has more to compute.
  return half == PairHalf::kForward ? share(other) <= share(mine) : share(other) < share(mine);
}

void PairTurns::NoteIdle() {
  const auto runs = std::ranges::count_if(states_, &State::runs);
  const auto meet = std::ranges::count_if(states_, &State::meets);
  if (runs > 0 && runs == meet && !idle_since_.has_value()) idle_since_ = MonotonicNanos();
}

}  // namespace takt::engine
