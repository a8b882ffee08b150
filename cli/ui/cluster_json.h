// SPDX-License-Identifier: Apache-2.0
// Makes the JSON of a cluster for the page: of each message only what the page shows, because it
// is made again each time anything changes.
#pragma once

#include <vector>

#include "cli/base/message_json.h"
#include "takt/v1/cluster_service.pb.h"
#include "takt/v1/job_service.pb.h"

namespace takt::cli {

// A worker that is there has no `last_seen`, which changes all the time.
Json WorkersJson(const std::vector<v1::Worker>& workers);
Json JobsJson(const std::vector<v1::Job>& jobs);
Json HeldJobsJson(const std::vector<v1::HeldJob>& jobs);

}  // namespace takt::cli
