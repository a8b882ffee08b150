// SPDX-License-Identifier: Apache-2.0
#include "coordinator/submission/submission.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/placement/placement.h"

namespace takt::submission {
namespace {

using Shared = std::shared_ptr<const Submission>;

// Returns an empty name if callers are not asked who they are.
std::string OwnerOf(const access::Identity& who) {
  return who.role == access::Role::kTrusted ? "" : who.ToString();
}

// Goes on with the submission on the deciding thread, which alone knows the other jobs.
void Enqueue(job::Coordinator* coordinator, const Shared& submission, Accepted tried,
             const Done& done) {
  coordinator->Post(
      [submission, tried = std::move(tried), done](job::Cluster& cluster, Moment now) {
        if (submission->validate_only) {
          const absl::Status status = cluster.CheckSubmit(submission->parsed);
          return done(status.ok() ? absl::StatusOr<Accepted>(tried) : status);
        }
        cluster.Submit(
            {.request_id = RequestIdOf(submission->who, submission->request_id),
             .spec = submission->spec,
             .parsed = submission->parsed,
             .owner = OwnerOf(submission->who),
             .predicted_step_seconds = tried.predicted_step_seconds},
            [done](absl::StatusOr<store::JobRecord> job) {
              done(job.ok() ? absl::StatusOr<Accepted>(Accepted{.job = *std::move(job)})
                            : job.status());
            },
            now);
      });
}

}  // namespace

void Submit(job::Coordinator* coordinator, Submission submission, Done done) {
  const auto shared = std::make_shared<const Submission>(std::move(submission));
  const config::JobSpec& spec = shared->parsed;
  // With `pipeline: auto` the plan depends on the workers that will be there.
  if (!spec.parallelism.pipeline) return Enqueue(coordinator, shared, {}, done);
  const auto planned = [coordinator, shared, done](const absl::StatusOr<plan::Plan>& plan) {
    if (!plan.ok()) return done(plan.status());
    Enqueue(coordinator, shared,
            {.schedule = plan->schedule.name,
             .warnings = plan->warnings,
             .predicted_step_seconds = plan->predicted_step_seconds},
            done);
  };
  if (coordinator->TryPlan(spec, placement::PlanOptionsFor(spec), planned)) return;
  done(absl::ResourceExhaustedError(
      "too many jobs that were submitted wait to be planned; submit again in some seconds"));
}

std::string RequestIdOf(const access::Identity& who, const std::string& request_id) {
  if (request_id.empty() || who.role == access::Role::kTrusted) return request_id;
  return absl::StrCat(who.ToString(), "/", request_id);
}

}  // namespace takt::submission
