// SPDX-License-Identifier: Apache-2.0
#include "coordinator/tracking/deliveries.h"

#include <algorithm>
#include <optional>
#include <set>

#include "common/base/status.h"
#include "coordinator/tracking/tracked_job_serde.h"

namespace takt::tracking {

absl::Status Deliveries::Round(const Jobs& jobs) {
  std::set<std::string> ids;
  for (const auto& job : jobs) ids.insert(job->id);
  std::erase_if(progress_, [&](const auto& entry) { return !ids.contains(entry.first); });
  absl::Status first;
  for (const auto& job : jobs) {
    Progress& progress = progress_[job->id];
    if (progress.rest > 0) {
      --progress.rest;
    } else {
      const absl::Status status = Deliver(*job, progress);
      if (absl::IsUnavailable(status)) return status;
      progress.rest = status.ok() ? 0 : progress.next_rest;
      progress.next_rest = status.ok() ? 1 : std::min(2 * progress.next_rest, kMostRest);
      progress.refusal = status;
    }
    first.Update(progress.refusal);
  }
  return first;
}

absl::Status Deliveries::Deliver(const store::JobRecord& job, Progress& progress) {
  if (progress.done) return absl::OkStatus();
  const bool ended = store::HasEnded(job.state);
  if (!progress.run.has_value()) {
    if (ended && job.end_time.value_or(since_) < since_) progress.done = true;
    // A job that waits, or failed before its first step, has no curve.
    if (progress.done || !job.last_step.has_value()) return absl::OkStatus();
    const std::optional<TrackedJob> tracked = ToTrackedJob(job);
    progress.done = !tracked.has_value();
    if (progress.done) return absl::OkStatus();
    ASSIGN_OR_RETURN(progress.run, tracker_->Open(*tracked));
  }
  TrackedRun& run = *progress.run;
  while (job.last_step.has_value() && job.last_step->step > run.last) {
    ASSIGN_OR_RETURN(const std::vector<store::StepRecord> steps,
                     store_->ReadSteps(job.id, run.last, Tracker::kMostSteps));
    if (steps.empty()) break;
    RETURN_IF_ERROR(tracker_->Append(run.id, steps));
    run.last = steps.back().step;
  }
  if (!ended) return absl::OkStatus();
  RETURN_IF_ERROR(tracker_->Close(run.id, job.state, job.end_time.value_or(since_)));
  progress.done = true;
  return absl::OkStatus();
}

}  // namespace takt::tracking
