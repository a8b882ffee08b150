// SPDX-License-Identifier: Apache-2.0
// Writes the measured timeline of some steps of a job to a file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "cli/base/context.h"
#include "cli/client/client.h"

namespace takt::cli {

struct TimelineFileOptions {
  std::string job, file;
  std::string format = "html";       // html, perfetto, svg
  std::int64_t first = 0, last = 0;  // steps; both 0: the `newest`
  int newest = 3;
};

struct TimelineFile {
  std::int64_t first = 0, last = 0;  // steps
  std::string steps;                 // "steps 5 to 8"
  std::size_t num_steps = 0, bytes = 0;
  int num_ranks = 0;
  std::string left_out;  // what was left out to keep the file small; empty: nothing
  double clock_error_seconds = 0;
};

// Errors: those of Client::GetTrace and WriteNewFile; kInvalidArgument, kResourceExhausted: more
// than the format can show.
absl::StatusOr<TimelineFile> WriteTimeline(const Context& context, Client& client,
                                           const TimelineFileOptions& options);

// Says on stderr what was written.
void SayTimeline(const Context& context, const TimelineFileOptions& options,
                 const TimelineFile& written);

}  // namespace takt::cli
