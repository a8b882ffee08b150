// SPDX-License-Identifier: Apache-2.0
// Decides which ended jobs the coordinator forgets by itself.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace takt::job {

struct RetentionOptions {
  std::int64_t jobs = 1000;                   // that ended last, and are kept; 0: any number
  absl::Duration age = absl::Hours(90 * 24);  // since a job's end; infinite: any
  // One transaction deletes at most this many jobs, and fewer if they have more than steps_at_once
  // steps together, so that none takes long.
  int at_once = 100;
  std::int64_t steps_at_once = 10'000;
};

struct EndedJob {
  std::string name;
  absl::Time end;
  std::int64_t steps = 0;  // that were committed
};

// Returns the names of the jobs to forget now, the one that ended first in front. count: of all
// ended jobs. first: those of them that ended first, in this order; options.at_once suffice. A job
// with more steps than options.steps_at_once goes alone.
std::vector<std::string> JobsToForget(const std::vector<EndedJob>& first, std::int64_t count,
                                      const RetentionOptions& options, absl::Time now);

}  // namespace takt::job
