// SPDX-License-Identifier: Apache-2.0
// Tells people what a job in the queue waits for. The text rarely changes while time passes,
// because each change is stored and logged.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/placement/queue.h"

namespace takt::placement {

// Says what keeps a job from its gang. The references are borrowed.
struct Obstacles {
  Need need;
  int num_idle = 0;                        // workers that would serve it
  int num_unfit = 0;                       // idle workers that would not
  int num_old = 0;                         // idle workers whose programs are too old
  int num_sharing = 0;                     // idle workers whose GPU num_idle counts already
  const std::map<std::string, int>& held;  // by job, with a remark on it in parentheses if need be
  int drained = 0, leaving = 0, quarantined = 0;
  const std::vector<std::string>& reserved_for;  // jobs that come before it and reserve workers
  std::optional<double> reserved_in;             // Grant::reserved_in
  std::vector<std::string> preempts;             // Grant::preempts
};

// Returns e.g. "needs 4 workers, 2 idle: 2 held by job x; 4 are reserved for it in about 15 min".
std::string WhyItWaits(const Obstacles& obstacles);

// Returns e.g. "needs 4 workers: user/ada may hold 8 at once and holds 6".
std::string WhyOverQuota(const WaitingJob& job, int quota, int held);

// Returns e.g. "in about 15 min", rounded up to one of few values.
std::string InAbout(double seconds);

}  // namespace takt::placement
