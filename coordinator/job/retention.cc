// SPDX-License-Identifier: Apache-2.0
#include "coordinator/job/retention.h"

namespace takt::job {

std::vector<std::string> JobsToForget(const std::vector<EndedJob>& first, std::int64_t count,
                                      const RetentionOptions& options, absl::Time now) {
  const std::int64_t too_many = options.jobs > 0 ? count - options.jobs : 0;
  std::vector<std::string> names;
  std::int64_t steps = 0;
  for (const EndedJob& job : first) {
    const auto taken = static_cast<std::int64_t>(names.size());
    if (taken >= options.at_once) break;
    steps += job.steps;
    if (taken > 0 && steps > options.steps_at_once) break;
    if (taken >= too_many && now - job.end <= options.age) break;
    names.push_back(job.name);
  }
  return names;
}

}  // namespace takt::job
