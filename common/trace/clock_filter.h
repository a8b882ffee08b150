// SPDX-License-Identifier: Apache-2.0
// How far a worker's steady clock is from ours, from questions and answers.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>

#include "common/trace/job_trace.h"

namespace takt::trace {

// One caller at a time.
class ClockFilter {
 public:
  // Asked at `sent` and answered by `received` of our clock, when theirs said `theirs`. An answer
  // before its question changes nothing.
  void Add(std::int64_t sent_nanos, std::int64_t theirs_nanos, std::int64_t received_nanos);

  // By the quickest of the last answers: theirs was read halfway, give or take the half. Unset:
  // none.
  std::optional<ClockOffset> Offset() const;

 private:
  static constexpr std::size_t kKept = 64;  // a minute of heartbeats: clocks do not drift far
  std::deque<ClockOffset> answers_;
};

}  // namespace takt::trace
