// SPDX-License-Identifier: Apache-2.0
// Makes the pages of docs/schedules from the families themselves, so that the pages stay true.
#pragma once

#include <map>
#include <string>

#include "absl/status/statusor.h"

namespace takt::documents {

// The pages by file name: README.md, and NAME.md and NAME.svg for every family.
absl::StatusOr<std::map<std::string, std::string>> SchedulePages();

}  // namespace takt::documents
