// SPDX-License-Identifier: Apache-2.0
// What is kept of a fault: what every rank was doing, from its flight recorder. A rank that let go
// says so itself; of one that is lost it is its last heartbeat.
#pragma once

#include <string>
#include <vector>

#include "common/base/id.h"
#include "common/control/assignment.h"
#include "common/control/rank_status.h"
#include "coordinator/job/decide.h"
#include "coordinator/store/record.h"

namespace takt::job {

inline constexpr std::size_t kRecentPerRank = 16;
inline constexpr std::size_t kRecentPerJob = 4096;  // so that a record stays far below a message
inline constexpr std::size_t kStatusTextBytes = 256;

// As it came from a worker, cut to the bounds above; `time`: when it came.
control::RankStatus ToKeep(control::RankStatus status, const control::BoundRank& bound,
                           absl::Time time);

// By rank.
std::vector<control::RankStatus> FaultOf(const JobRun& run);

inline constexpr std::size_t kLoggedRanks = 16;

// A line a rank, of at most kLoggedRanks: those first that waited for nobody.
void LogFault(const std::string& job, Generation generation,
              std::vector<control::RankStatus> fault);

}  // namespace takt::job
