// SPDX-License-Identifier: Apache-2.0
// Finds how far a worker's steady clock is from ours, from questions and answers.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>

#include "common/trace/job_trace.h"

namespace takt::trace {

// One caller at a time.
class ClockFilter {
 public:
  // Adds an exchange: we asked at `sent` and had the answer by `received` of our clock, and theirs
  // said `theirs` in between. An answer before its question changes nothing.
  void Add(std::int64_t sent_nanos, std::int64_t theirs_nanos, std::int64_t received_nanos);

  // The offset by the quickest of the last answers. It takes their clock to be read halfway, with
  // half the time as the error. Unset: there was no answer.
  std::optional<ClockOffset> Offset() const;

 private:
  // A worker is asked at every fourth heartbeat. So these are of a minute, in which clocks do not
  // drift far.
  static constexpr std::size_t kKept = 16;
  std::deque<ClockOffset> answers_;
};

}  // namespace takt::trace
