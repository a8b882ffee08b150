// SPDX-License-Identifier: Apache-2.0
// Decides how often the ranks of a generation copy their state in memory, and which rank keeps
// whose copies. It is pure. The ranks of the next generation find out which step they resume from
// (worker/session/copy_choice.h).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/config/job_spec.h"
#include "common/control/assignment.h"
#include "common/plan/plan.h"

namespace takt::job {

// The plan of copies depends on these. The struct borrows.
struct CopyFacts {
  const config::JobSpec& spec;
  const plan::Plan& plan;
  config::DeviceKind device = config::DeviceKind::kCpu;
  std::vector<std::string> hosts;  // of the workers, by rank
  int oldest_protocol = 0;         // of those that the workers speak
  // How long training pauses for each byte that a worker copies; nullopt: it was not measured.
  std::optional<double> seconds_per_byte;
};

struct CopyPlan {
  control::MemoryCopies copies;  // without what depends on the job's past
  std::string why_none;          // for people; empty: copies are kept
  bool may_restore = true;       // false: a worker would read copies of earlier generations wrongly
};

// For `auto` it takes the smallest number of steps over which a copy takes at most 1 % of the time
// of training, and within which it is sent. The time of a copy is that of the pause, and on a
// worker without a device also that of sending. If the plan counts no memory for copies, they do
// not fit, and a job that did not ask for them keeps none. A rank's copies go to the rank that is
// `shift` further: the smallest shift by which most ranks' copies are on another host.
CopyPlan PlanCopies(const CopyFacts& facts);

}  // namespace takt::job
