// SPDX-License-Identifier: Apache-2.0
// Plans the jobs of a simulation, in place of common/plan.
#pragma once

#include "common/config/job_spec.h"
#include "common/plan/plan.h"

namespace takt::simulation {

// Returns a plan for as many ranks as the job and the workers allow, else for the job's least. Its
// programs are empty, since the ranks do not run them. It predicts that more ranks are faster.
plan::Plan PlanOf(const config::JobSpec& spec, const plan::PlanOptions& options);

}  // namespace takt::simulation
