// SPDX-License-Identifier: Apache-2.0
// Prints jobs for people, or as one JSON object.
#pragma once

#include <string>
#include <vector>

#include "cli/base/context.h"
#include "takt/v1/job.pb.h"
#include "takt/v1/job_service.pb.h"

namespace takt::cli {

void PrintJob(const Context& context, const v1::Job& job);
// "rank 0 (w0): last step 12, at 0B1 of step 13 for 4.9 s, waiting for RECV 1B1 from pp rank 1"
std::string FaultText(const v1::RankStatus& rank);
// The flight recorder of the rank: "step 12: 0B3 OPT; step 13: 0F0 0F1 (4.9 s before)"
std::string RecentText(const v1::RankStatus& rank);

// Jobs that workers hold and the coordinator does not know come after the others.
void PrintJobs(const Context& context, const std::vector<v1::Job>& jobs,
               const std::vector<v1::HeldJob>& held);

}  // namespace takt::cli
