// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "cli/base/context.h"
#include "takt/v1/cluster_service.pb.h"

namespace takt::cli {

// Prints workers as a table, or as one JSON object.
void PrintWorkers(const Context& context, const std::vector<v1::Worker>& workers);

}  // namespace takt::cli
