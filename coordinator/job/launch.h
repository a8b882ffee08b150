// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/base/id.h"
#include "common/config/job_spec.h"
#include "common/control/assignment.h"
#include "common/control/attachment.h"
#include "common/plan/plan.h"
#include "common/profile/learn.h"

namespace takt::job {

// One generation of a job, ready to be given to its ranks.
struct Launch {
  control::JobKey key;
  config::JobSpec job;
  plan::Plan plan;
  config::DeviceKind device = config::DeviceKind::kCpu;
  std::vector<control::BoundRank> ranks;
  bool sparse_meeting = false;  // as in control::Assignment
  bool plain_sockets = false;   // the same
  bool sharing_chains = false;  // the same
  // By rank: what a profile keeps the times of the run under.
  std::vector<profile::RankPlace> places;
  std::vector<int> threads;     // by rank
  std::string secret;           // control::kSecretBytes random bytes; never stored, never logged
  std::string resume = "none";  // as in control::Assignment
  StepId resume_at_most;
  StepId saved;
  std::string job_id;
  std::vector<std::string> other_jobs;
  std::string owner;
  std::int64_t epoch = 0;
  control::MemoryCopies copies;
};

// Returns the command that gives `rank` its part of `launch`.
control::Prepare PrepareOf(std::shared_ptr<const Launch> launch, Rank rank);

}  // namespace takt::job
