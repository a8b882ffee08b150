// SPDX-License-Identifier: Apache-2.0
#include "worker/engine/step_times.h"

#include <algorithm>
#include <utility>

#include "common/program/part_lists.h"
#include "worker/transport/wake_word.h"

namespace takt::engine {

StepTimes::StepTimes(const program::Program& whole, std::vector<std::int32_t> origins)
    : whole_(whole), origins_(std::move(origins)), meetings_at_(program::MeetingOffsets(whole)) {}

// A pair lasts from the start of its first half to the end of its last one. If neither ran for some
// time in between, because a message came late, it counts as if it had begun later by that time.
void StepTimes::JoinHalves(const std::vector<InstructionTiming>& timings,
                           const std::vector<InstructionTiming>& meetings) {
  timings_.assign(whole_.body.size(), {});
  for (std::size_t i = 0; i < origins_.size(); ++i) {
    InstructionTiming& joined = timings_[static_cast<std::size_t>(origins_[i])];
    joined = timings[i];
    const bool ends_pair = i > 0 && origins_[i] == origins_[i - 1];
    if (!ends_pair) continue;
    const InstructionTiming& forward = timings[i - 1];
    const std::int64_t gap = std::max<std::int64_t>(
        {0, joined.start_nanos - forward.end_nanos, forward.start_nanos - joined.end_nanos});
    joined = {.start_nanos = std::min(forward.start_nanos, joined.start_nanos) + gap,
              .end_nanos = std::max(forward.end_nanos, joined.end_nanos)};
  }
  meetings_ = meetings;
  // A program of an older version has no lists for the B of its pairs.
  meetings_.resize(meetings_at_.back());
}

StepTiming StepTimes::Summarize(StepId step, const std::vector<InstructionTiming>& timings,
                                const std::vector<InstructionTiming>& meetings,
                                std::int64_t previous_end) {
  const bool split = !origins_.empty();
  if (split) JoinHalves(timings, meetings);
  StepTiming summary{.step = step,
                     .timings = split ? &timings_ : &timings,
                     .meetings = split ? &meetings_ : &meetings};
  std::int64_t first_start = transport::kNoDeadline;
  for (std::size_t i = 0; i < whole_.body.size(); ++i) {
    const InstructionTiming& timing = (*summary.timings)[i];
    first_start = std::min(first_start, timing.start_nanos);
    summary.end_nanos = std::max(summary.end_nanos, timing.end_nanos);
    if (!program::IsCompute(whole_.body[i].op)) continue;
    summary.compute_nanos += timing.end_nanos - timing.start_nanos;
    for (std::size_t m = meetings_at_[i]; m < meetings_at_[i + 1]; ++m) {
      const InstructionTiming& meeting = (*summary.meetings)[m];
      summary.compute_nanos -= meeting.end_nanos - meeting.start_nanos;
    }
  }
  summary.start_nanos = previous_end != 0 ? previous_end : first_start;
  return summary;
}

}  // namespace takt::engine
