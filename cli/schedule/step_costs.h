// SPDX-License-Identifier: Apache-2.0
// Costs as the command line gives them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "CLI/App.hpp"
#include "absl/status/statusor.h"
#include "common/cost/costs.h"
#include "common/schedule/schedule.h"

namespace takt::cli {

struct CostOptions {
  std::string cost = "F=1,I=1,W=1,comm=0";  // B unset: I + W; O unset: F + B
  std::string costs_file;
};

// Time and bytes of a step. Lists are by stage, those of one entry serve all stages.
struct StepCosts {
  cost::Costs time;
  std::vector<std::int64_t> output_bytes{0};  // of a message that leaves the stage
  std::vector<std::int64_t> stash_bytes{0};   // of a microbatch in flight on the stage
  // On what --costs says that its seconds were measured; empty: it does not say. A simulation with
  // them is a prediction.
  std::string measured;
  std::string measured_kinds;  // that every stage has there, of "FIWBO"
};

void DeclareCosts(CLI::App& command, CostOptions& options);

// What --cost says for every stage, then what --costs FILE.json says for each (the form is
// kCostsFileHelp). Not yet compared with the sizes of a schedule.
// Errors: kInvalidArgument (FieldError).
absl::StatusOr<StepCosts> ReadCosts(const CostOptions& options);

// One value or one a stage, links between ranks that are there, times measured for all kinds that
// the schedule has. kInvalidArgument (FieldError).
absl::Status CheckCostsFit(const StepCosts& costs, const schedule::Schedule& schedule);

// For --help of the commands that take costs.
extern const char kCostsFileHelp[];

}  // namespace takt::cli
