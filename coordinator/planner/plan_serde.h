// SPDX-License-Identifier: Apache-2.0
// Serializes the request to plan and the answer that pass between the coordinator and its planning
// child.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "common/config/job_spec.h"
#include "common/plan/plan.h"

namespace takt::planner {

struct PlanRequest {
  config::JobSpec job;
  plan::PlanOptions options;
};

std::string FormatRequest(const config::JobSpec& job, const plan::PlanOptions& options);
// Errors: kDataLoss (these are not the bytes of a request).
absl::StatusOr<PlanRequest> ParseRequest(const std::string& bytes);

// The bytes carry a failure too, with its field errors.
std::string FormatAnswer(const absl::StatusOr<plan::Plan>& answer);
// Returns the plan, or the failure that was formatted. Other errors: kDataLoss (these are not the
// bytes of an answer to `request`).
absl::StatusOr<plan::Plan> ParseAnswer(const std::string& bytes, const PlanRequest& request);

}  // namespace takt::planner
