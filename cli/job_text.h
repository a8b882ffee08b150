// SPDX-License-Identifier: Apache-2.0
// Jobs and workers as people read them, or as one JSON object.
#pragma once

#include <vector>

#include "cli/context.h"
#include "takt/v1/cluster_service.pb.h"
#include "takt/v1/job.pb.h"

namespace takt::cli {

void PrintJob(const Context& context, const v1::Job& job);
void PrintJobs(const Context& context, const std::vector<v1::Job>& jobs);
void PrintWorkers(const Context& context, const std::vector<v1::Worker>& workers);

}  // namespace takt::cli
