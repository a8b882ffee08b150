// SPDX-License-Identifier: Apache-2.0
// The schedule that a command works on: a family with its sizes, or a file.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "CLI/App.hpp"
#include "absl/status/statusor.h"
#include "cli/schedule/step_costs.h"
#include "common/cost/costs.h"
#include "common/schedule/generate.h"
#include "common/schedule/schedule.h"

namespace takt::cli {

struct ScheduleSizes {
  std::optional<std::int64_t> ranks, microbatches, chunks, group, memory;

  // The limit for the validator, from checked sizes; 0: no limit.
  int max_in_flight() const { return static_cast<int>(memory.value_or(0)); }
};

struct ScheduleSource {
  std::string name;  // a family, or a path if it ends in .csv or contains a slash
  ScheduleSizes sizes;
  std::string placement;  // empty: the family's own, or the one that the rows of the file show
};

void DeclareScheduleSizes(CLI::App& command, ScheduleSizes& sizes);
void DeclareScheduleSource(CLI::App& command, ScheduleSource& source);

// Returns the sizes for a generator, each from 1 to kMaxActions. kInvalidArgument (FieldErrors): a
// size is outside this range, or P or M is not given.
absl::StatusOr<schedule::GenerateOptions> MakeGenerateOptions(const ScheduleSizes& sizes,
                                                              const cost::Costs& costs);

struct LoadedSchedule {
  schedule::Schedule schedule;
  std::string remark;  // tells the user how `auto` found it; else empty
};

// Generates, searches (`auto`) or parses the schedule. It is not yet validated. Errors:
// kInvalidArgument (FieldError).
absl::StatusOr<LoadedSchedule> LoadSchedule(const ScheduleSource& source, const StepCosts& costs);
absl::StatusOr<std::string> ReadScheduleFile(const std::string& path);
absl::StatusOr<schedule::Schedule> ParseSchedule(const std::string& text, const std::string& path,
                                                 const std::string& placement);

}  // namespace takt::cli
