// SPDX-License-Identifier: Apache-2.0
// One function for each built-in family. Each has a file of its own and a line in families.def.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "common/schedule/generate.h"
#include "common/schedule/schedule.h"

namespace takt::schedule {

struct Generator {
  Family family;
  // In `options` all sizes are at least 1 and within kMaxActions, num_chunks is set, group is set
  // only if the family uses groups, and costs are checked if the family uses them.
  absl::StatusOr<Schedule> (*generate)(const GenerateOptions& options);
};

// Makes the schedule of a family from its rows, by pp rank. options: as above.
Schedule MakeSchedule(const Family& family, const GenerateOptions& options, std::vector<Row> rows);

#define TAKT_FAMILY(Function, file) Generator Function();
#include "common/schedule/generators/families.def"
#undef TAKT_FAMILY

}  // namespace takt::schedule
