// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "common/base/status.h"
#include "common/config/job_spec.h"
#include "common/plan/plan.h"
#include "gtest/gtest.h"

namespace takt::plan {

// Four workers whose messages take no time.
inline const PlanOptions kFourWithFreeLinks{
    .max_workers = 4, .link_latency_seconds = 0, .link_seconds_per_byte = 0};

// Returns why no plan for four workers is made. The error must name a field.
inline std::string ErrorOf(const config::JobSpec& job) {
  const absl::Status status = MakePlan(job, {.max_workers = 4}).status();
  EXPECT_FALSE(FieldErrorsOf(status).empty()) << status;
  return std::string(status.message());
}

}  // namespace takt::plan
