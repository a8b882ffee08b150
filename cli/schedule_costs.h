// SPDX-License-Identifier: Apache-2.0
// Costs as the command line gives them.
#pragma once

#include <string>

#include "CLI/App.hpp"
#include "absl/status/statusor.h"
#include "common/cost/costs.h"

namespace takt::cli {

struct CostOptions {
  std::string cost = "F=1,I=1,W=1,comm=0";  // B unset: I + W
  std::string costs_file;
};

void DeclareCosts(CLI::App& command, CostOptions& options);

// What --cost says for every stage, then what --costs FILE.json says for each:
//   {"stages": [{"F": 1, "I": 1, "W": 1, "B": 2}, ...], "latency": 0}
// with one entry for all stages or one for each. Errors: kInvalidArgument (FieldError).
absl::StatusOr<cost::Costs> ReadCosts(const CostOptions& options, int num_stages);

}  // namespace takt::cli
