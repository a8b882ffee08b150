// SPDX-License-Identifier: Apache-2.0
#include "common/trace/clock_filter.h"

#include <algorithm>

namespace takt::trace {

void ClockFilter::Add(std::int64_t sent_nanos, std::int64_t theirs_nanos,
                      std::int64_t received_nanos) {
  const std::int64_t round_trip = received_nanos - sent_nanos;
  if (round_trip < 0) return;
  if (answers_.size() == kKept) answers_.pop_front();
  answers_.push_back({.offset_nanos = sent_nanos + round_trip / 2 - theirs_nanos,
                      .error_nanos = round_trip - round_trip / 2});
}

std::optional<ClockOffset> ClockFilter::Offset() const {
  // Of equally quick answers the newest wins.
  const auto best = std::min_element(
      answers_.rbegin(), answers_.rend(),
      [](const ClockOffset& a, const ClockOffset& b) { return a.error_nanos < b.error_nanos; });
  return best == answers_.rend() ? std::nullopt : std::optional(*best);
}

}  // namespace takt::trace
