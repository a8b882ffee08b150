// SPDX-License-Identifier: Apache-2.0
#include "worker/engine/part_cursor.h"

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/program/part_lists.h"
#include "worker/transport/wake_word.h"

namespace takt::engine {

using program::Part;
using transport::MonotonicNanos;

void PartCursor::Begin(const PartRun& run) {
  run_ = run;
  next_ = num_met_ = 0;
  current_.store(-1, std::memory_order_relaxed);
}

absl::Status PartCursor::Meet(program::PartKind kind, program::PartGroup group,
                              absl::FunctionRef<absl::Status()> meeting) {
  if (run_.parts.empty()) return meeting();
  while (next_ < run_.parts.size() && !run_.parts[next_].meets()) ++next_;
  if (next_ == run_.parts.size()) {
    return absl::InternalError(absl::StrCat("ranks meet once more than its list of parts says, in ",
                                            std::string(model::Name(kind))));
  }
  const Part& part = run_.parts[next_];
  if (part.kind != kind || part.group != group) {
    return absl::InternalError(absl::StrCat("ranks come to a ", std::string(model::Name(kind)),
                                            " where its list of parts has ",
                                            program::PartName(run_.parts, next_)));
  }
  current_.store(static_cast<int>(next_++), std::memory_order_relaxed);
  RETURN_IF_ERROR(RunTimed(meeting));
  current_.store(-1, std::memory_order_relaxed);
  ++num_met_;
  return absl::OkStatus();
}

absl::Status PartCursor::RunTimed(absl::FunctionRef<absl::Status()> meeting) {
  const MeetingEvents* const events =
      run_.stream == nullptr || run_.events.empty() ? nullptr : &run_.events[num_met_];
  InstructionTiming timing{.start_nanos = MonotonicNanos()};
  if (events != nullptr) {
    constexpr std::int64_t kPoints = 2;  // its start and its end
    RETURN_IF_ERROR(run_.stream->MakeRoom(kPoints));
    RETURN_IF_ERROR(run_.stream->Record(*events->start));
  }
  if (run_.turns == nullptr) {
    RETURN_IF_ERROR(meeting());
  } else {
    run_.turns->BeginMeeting(run_.half);
    const absl::Status status = meeting();
    const std::optional<std::int64_t> idle_since = run_.turns->EndMeeting(run_.half);
    RETURN_IF_ERROR(status);
    timing.start_nanos = idle_since.value_or(MonotonicNanos());
  }
  if (events != nullptr) RETURN_IF_ERROR(run_.stream->Record(*events->end));
  timing.end_nanos = MonotonicNanos();
  if (!run_.times.empty()) run_.times[num_met_] = timing;
  return absl::OkStatus();
}

absl::Status PartCursor::End() {
  const PartRun run = run_;
  run_ = {};
  if (current() >= 0) return absl::OkStatus();  // the meeting's own error is told
  for (; next_ < run.parts.size(); ++next_) {
    if (!run.parts[next_].meets()) continue;
    return absl::InternalError(absl::StrCat("its list of parts has ",
                                            program::PartName(run.parts, next_),
                                            ", to which the rank did not come"));
  }
  return absl::OkStatus();
}

}  // namespace takt::engine
