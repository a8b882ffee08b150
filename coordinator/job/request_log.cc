// SPDX-License-Identifier: Apache-2.0
#include "coordinator/job/request_log.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace takt::job {

absl::StatusOr<std::optional<store::RequestRecord>> RequestLog::Find(const std::string& method,
                                                                     const std::string& request_id,
                                                                     const std::string& job) const {
  std::optional<store::RequestRecord> found;
  if (request_id.empty()) return found;
  const auto added = std::ranges::find_if(added_, [&](const store::RequestRecord& request) {
    return request.method == method && request.request_id == request_id;
  });
  if (added != added_.end()) {
    found = *added;
  } else {
    ASSIGN_OR_RETURN(found, store_->FindRequest(method, request_id));
  }
  if (!found || !found->job || found->job->name == job) return found;
  return InvalidField({.field = "request_id",
                       .value = request_id,
                       .rule = absl::StrCat("was used for job ", found->job->name, ", not ", job),
                       .fix = "choose a new random one for every request"});
}

void RequestLog::Add(const std::string& method, const std::string& request_id,
                     std::optional<store::JobRecord> job) {
  if (!request_id.empty()) added_.push_back({method, request_id, std::move(job)});
}

std::vector<store::RequestRecord> RequestLog::Take() { return std::exchange(added_, {}); }

}  // namespace takt::job
