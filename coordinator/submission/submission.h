// SPDX-License-Identifier: Apache-2.0
// Takes a submitted job to the queue: its plan is tried if it does not depend on the workers that
// the job will get, its name and paths are compared with those of other jobs, and it gets its
// owner.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/access/identity.h"
#include "common/config/job_spec.h"
#include "coordinator/job/coordinator.h"
#include "coordinator/store/record.h"

namespace takt::submission {

struct Submission {
  access::Identity who;
  std::string request_id;
  std::string spec;        // takt.v1.JobSpec, serialized
  config::JobSpec parsed;  // the same, validated
  bool validate_only = false;
};

struct Accepted {
  std::optional<store::JobRecord> job;  // nullopt: it was only validated
  // The tried plan of a job that was only validated. It is empty if the plan depends on the workers
  // that will be there.
  store::PlanSummary tried;
};

// Calls `done` once, on the planning or the deciding thread; it is dropped when the coordinator
// stops. Errors: those of plan::MakePlan and job::Cluster::CheckSubmit, kResourceExhausted (too
// many jobs wait to be planned), kFailedPrecondition (FieldError: there is no tracking server).
using Done = std::function<void(const absl::StatusOr<Accepted>&)>;
void Submit(job::Coordinator* coordinator, Submission submission, Done done);

// Returns the id under which the answer to a request is remembered. It names the caller, so that no
// caller is given the answer to another's request.
std::string RequestIdOf(const access::Identity& who, const std::string& request_id);

}  // namespace takt::submission
