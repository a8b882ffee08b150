// SPDX-License-Identifier: Apache-2.0
// Records what every rank was doing at a fault, from its flight recorder. A rank that ended reports
// it. For a rank whose worker is lost, the last heartbeat tells it.
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

// Cuts a status that a worker sent to the bounds above. time: when it came.
control::RankStatus ToKeep(control::RankStatus status, const control::BoundRank& bound,
                           absl::Time time);

// Returns the last status of each rank, by rank.
std::vector<control::RankStatus> FaultOf(const JobRun& run);

inline constexpr std::size_t kLoggedRanks = 16;

// Logs one line for each rank, for at most kLoggedRanks: first those that waited for no other rank.
void LogFault(const std::string& job, Generation generation,
              std::vector<control::RankStatus> fault);

}  // namespace takt::job
