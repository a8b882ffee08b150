// SPDX-License-Identifier: Apache-2.0
// The schedule that a command works on: a family and its sizes, or a file.
#pragma once

#include <optional>
#include <string>

#include "CLI/App.hpp"
#include "absl/status/statusor.h"
#include "common/schedule/schedule.h"

namespace takt::cli {

struct ScheduleSource {
  std::string name;  // of a family, or a path: whatever ends in .csv or holds a slash
  std::optional<int> ranks, microbatches, chunks, group;
  std::string placement;  // of a file; empty: the one that its rows show
};

void DeclareScheduleSource(CLI::App& command, ScheduleSource& source);

// Generated or parsed, not yet validated. Errors: kInvalidArgument (FieldError).
absl::StatusOr<schedule::Schedule> LoadSchedule(const ScheduleSource& source);
absl::StatusOr<std::string> ReadScheduleFile(const std::string& path);
absl::StatusOr<schedule::Schedule> ParseSchedule(const std::string& text, const std::string& path,
                                                 const std::string& placement);

}  // namespace takt::cli
