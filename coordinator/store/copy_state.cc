// SPDX-License-Identifier: Apache-2.0
#include "coordinator/store/copy_state.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"

namespace takt::store {
namespace {

constexpr int kPage = 1000;

absl::Status CopySteps(Store& from, const JobRecord& job, Store& to) {
  if (!job.last_step) return absl::OkStatus();
  for (StepId after(0);;) {
    ASSIGN_OR_RETURN(std::vector<StepRecord> steps, from.ReadSteps(job.id, after, kPage));
    const bool is_last = std::ssize(steps) < kPage;
    // The job may have made more steps since its record was read.
    std::erase_if(steps, [&](const StepRecord& step) { return step.step > job.last_step->step; });
    if (steps.empty()) return absl::OkStatus();
    after = steps.back().step;
    RETURN_IF_ERROR(to.Commit({.steps = std::move(steps)}));
    if (is_last) return absl::OkStatus();
  }
}

absl::Status CopyLogs(Store& from, const JobRecord& job, Store& to) {
  for (std::int64_t after = 0;;) {
    ASSIGN_OR_RETURN(std::vector<LogRecord> lines, from.ReadLogs(job.id, after, kPage));
    if (lines.empty()) return absl::OkStatus();
    after = lines.back().number;
    RETURN_IF_ERROR(to.Commit({.logs = std::move(lines)}));
  }
}

}  // namespace

absl::Status CopyState(Store& from, Store& to) {
  ASSIGN_OR_RETURN(const Snapshot before, to.Load());
  if (before.last_number > 0) {
    return absl::FailedPreconditionError(
        "the state that shall become a copy has had jobs already; take a new one");
  }
  ASSIGN_OR_RETURN(Snapshot snapshot, from.Load());
  ASSIGN_OR_RETURN(std::string profile, from.ReadProfile());
  for (const JobRecord& job : snapshot.jobs) {
    RETURN_IF_ERROR(CopySteps(from, job, to));
    RETURN_IF_ERROR(CopyLogs(from, job, to));
  }
  // The jobs come last and all at once, so that no part of a copy looks like a whole one.
  Changes changes{.jobs = std::move(snapshot.jobs),
                  .workers = std::move(snapshot.workers),
                  .profile = std::move(profile)};
  for (const std::string& worker : snapshot.drained) changes.drained[worker] = true;
  changes.identity = ClusterIdentity{.cluster_id = std::move(snapshot.cluster_id),
                                     .epoch = std::max(snapshot.epoch, before.epoch),
                                     .last_number = snapshot.last_number,
                                     .generations = std::move(snapshot.generations)};
  return to.Commit(changes);
}

}  // namespace takt::store
