// SPDX-License-Identifier: Apache-2.0
#include "coordinator/submission/submission.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/plan/ways.h"
#include "coordinator/placement/placement.h"

namespace takt::submission {
namespace {

using Shared = std::shared_ptr<const Submission>;

// Returns an empty name if callers are not asked who they are.
std::string OwnerOf(const access::Identity& who) {
  return who.role == access::Role::kTrusted ? "" : who.ToString();
}

// Goes on with the submission on the deciding thread, which alone knows the other jobs.
void Enqueue(job::Coordinator* coordinator, const Shared& submission, store::PlanSummary tried,
             const Done& done) {
  coordinator->Post(
      [submission, tried = std::move(tried), done](job::Cluster& cluster, Moment now) {
        if (submission->validate_only) {
          const absl::Status status = cluster.CheckSubmit(submission->parsed);
          return done(status.ok() ? absl::StatusOr<Accepted>(Accepted{.tried = tried}) : status);
        }
        cluster.Submit(
            {.request_id = RequestIdOf(submission->who, submission->request_id),
             .spec = submission->spec,
             .parsed = submission->parsed,
             .owner = OwnerOf(submission->who),
             // The queue predicts with it how long the job takes.
             .predicted_step_seconds = tried.predicted_step_seconds},
            [done](absl::StatusOr<store::JobRecord> job) {
              done(job.ok() ? absl::StatusOr<Accepted>(Accepted{.job = *std::move(job)})
                            : job.status());
            },
            now);
      });
}

// Tries the plan, and goes on with it.
void Plan(job::Coordinator* coordinator, const Shared& submission, const plan::PlanOptions& options,
          const Done& done) {
  const auto planned = [coordinator, submission, device = options.device,
                        done](const absl::StatusOr<plan::Plan>& plan) {
    if (!plan.ok()) return done(plan.status());
    Enqueue(coordinator, submission,
            {.device = device,
             .schedule = plan->schedule.name,
             .mesh = plan->mesh,
             .partition = plan->partition,
             .vocabulary_ends = plan->vocabulary_ends,
             .shares_optimizer = plan::SharesOptimizer(*plan),
             .predicted_step_seconds = plan->predicted_step_seconds,
             .predicted_bubble_fraction = plan->predicted_bubble_fraction,
             .warnings = plan->warnings,
             .memory = plan->memory},
            done);
  };
  if (coordinator->TryPlan(submission->parsed, options, planned)) return;
  done(absl::ResourceExhaustedError(
      "too many jobs that were submitted wait to be planned; submit again in some seconds"));
}

}  // namespace

void Submit(job::Coordinator* coordinator, Submission submission, Done done) {
  const auto shared = std::make_shared<const Submission>(std::move(submission));
  const config::JobSpec& job = shared->parsed;
  if (!job.mlflow.empty() && !coordinator->tracks()) {
    return done(UnusableField({.field = "logging.mlflow",
                               .value = job.mlflow,
                               .rule = "needs a tracking server, and this coordinator has none",
                               .fix = "remove it, or start takt-coordinator with --mlflow URL"}));
  }
  if (const absl::Status batch = plan::CheckBatch(job); !batch.ok()) return done(batch);
  if (job.LeavesSizeOpen() || job.LeavesBitsOpen()) return Enqueue(coordinator, shared, {}, done);
  // The deciding thread alone knows the workers that are there now.
  coordinator->Post([coordinator, shared, done](job::Cluster& cluster, Moment) {
    Plan(coordinator, shared, placement::PlanOptionsFor(shared->parsed, cluster.workers()), done);
  });
}

std::string RequestIdOf(const access::Identity& who, const std::string& request_id) {
  if (request_id.empty() || who.role == access::Role::kTrusted) return request_id;
  return absl::StrCat(who.ToString(), "/", request_id);
}

}  // namespace takt::submission
