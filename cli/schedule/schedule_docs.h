// SPDX-License-Identifier: Apache-2.0
// The pages of docs/schedules: made from the families themselves, so that none of them ages.
#pragma once

#include <map>
#include <string>

#include "absl/status/statusor.h"

namespace takt::cli {

// By file name: README.md, and NAME.md and NAME.svg for every family.
absl::StatusOr<std::map<std::string, std::string>> ScheduleDocs();

}  // namespace takt::cli
