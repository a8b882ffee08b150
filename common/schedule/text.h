// SPDX-License-Identifier: Apache-2.0
// Text forms. CSV is what PyTorch's pipelining reads and writes: one row a rank, one action a cell,
// empty cells allowed, CRLF or LF; compute actions and overlapped pairs of them only.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/schedule/schedule.h"

namespace takt::schedule {

// Errors: kInvalidArgument (FieldError with `where` = "name:row:cell"). The result is parsed, not
// yet validated; num_stages and num_microbatches are one more than the largest seen.
absl::StatusOr<Schedule> ParseCsv(std::string_view text, std::string_view name);
std::string FormatCsv(const Schedule& schedule);

}  // namespace takt::schedule
