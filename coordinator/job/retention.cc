// SPDX-License-Identifier: Apache-2.0
#include "coordinator/job/retention.h"

#include <algorithm>

namespace takt::job {

std::vector<std::string> JobsToForget(std::vector<EndedJob> ended, const RetentionOptions& options,
                                      absl::Time now) {
  std::ranges::stable_sort(ended, {}, &EndedJob::end);
  const auto count = static_cast<std::int64_t>(ended.size());
  const std::int64_t too_many = options.jobs > 0 ? count - options.jobs : 0;
  std::vector<std::string> names;
  for (std::int64_t i = 0; i < count && i < options.at_once; ++i) {
    const EndedJob& job = ended[static_cast<std::size_t>(i)];
    if (i >= too_many && now - job.end <= options.age) break;
    names.push_back(job.name);
  }
  return names;
}

}  // namespace takt::job
