// SPDX-License-Identifier: Apache-2.0
#include "coordinator/job/queue.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace takt::job {
namespace {

std::string Count(int number, const char* noun) {
  return absl::StrCat(number, " ", noun, number == 1 ? "" : "s");
}

std::string WhyNot(const Need& need, const Capacity& capacity) {
  std::vector<std::string> others;
  for (const auto& [job, number] : capacity.held)
    others.push_back(absl::StrCat(number, " held by job ", job));
  if (capacity.drained > 0) others.push_back(absl::StrCat(capacity.drained, " drained"));
  if (capacity.leaving > 0) others.push_back(absl::StrCat(capacity.leaving, " leaving"));
  if (others.empty()) others.push_back("no other is attached");
  return absl::StrCat("needs ", Count(need.workers, "worker"), ", ", capacity.idle.size(),
                      " idle: ", absl::StrJoin(others, ", "));
}

}  // namespace

std::vector<Grant> GrantGangs(const std::vector<std::pair<std::string, Need>>& waiting,
                              Capacity capacity) {
  std::vector<Grant> grants;
  for (const auto& [job, need] : waiting) {
    Grant& grant = grants.emplace_back();
    if (static_cast<int>(capacity.idle.size()) < need.workers) {
      grant.reason = WhyNot(need, capacity);
      continue;
    }
    const auto end = need.up_to_all ? capacity.idle.end() : capacity.idle.begin() + need.workers;
    grant.workers.assign(capacity.idle.begin(), end);
    capacity.idle.erase(capacity.idle.begin(), end);
    capacity.held[job] += static_cast<int>(grant.workers.size());
    grant.reason = absl::StrCat("got ", Count(static_cast<int>(grant.workers.size()), "worker"));
  }
  return grants;
}

}  // namespace takt::job
