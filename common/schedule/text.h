// SPDX-License-Identifier: Apache-2.0
// The text forms of a schedule. CSV is what PyTorch's pipelining reads and writes: one row a rank,
// one action a cell, empty cells allowed, CRLF or LF. Cells hold compute actions or overlapped
// pairs of them, and nothing else.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/schedule/schedule.h"

namespace takt::schedule {

// Parses without validating. num_stages and num_microbatches are one more than the largest seen,
// where the stages of S and T do not count. A schedule with any S or T spreads the vocabulary.
// kInvalidArgument: a FieldError with `where` = "name:row:cell".
absl::StatusOr<Schedule> ParseCsv(std::string_view text, std::string_view name);
std::string FormatCsv(const Schedule& schedule);

}  // namespace takt::schedule
