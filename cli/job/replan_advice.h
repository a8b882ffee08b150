// SPDX-License-Identifier: Apache-2.0
// Says whether a plan that is made now would shorten the steps of a job.
#pragma once

#include <optional>
#include <string>

#include "cli/client/client.h"
#include "common/explain/advice.h"
#include "common/trace/timeline.h"

namespace takt::cli {

// Plans the job again for as many workers as it has, with what the coordinator has measured
// meanwhile, and compares the prediction with the median step of the timeline. Returns nothing if
// the job does not run, the plan would be the one that it has, less than a tenth of a step would be
// saved, or the coordinator does not tell what a plan needs.
std::optional<explain::Advice> AdviseReplanning(Client& client, const std::string& job,
                                                const trace::Timeline& timeline);

}  // namespace takt::cli
