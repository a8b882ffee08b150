// SPDX-License-Identifier: Apache-2.0
// The costs that the user gives on the command line.
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

// Time and bytes of a step. Lists have an entry for each stage, or one entry for all stages.
struct StepCosts {
  cost::Costs time;
  std::vector<std::int64_t> output_bytes{0};  // bytes of a message that leaves the stage
  std::vector<std::int64_t> stash_bytes{0};   // bytes of a microbatch in flight on the stage
  // The machine on which the seconds of --costs were measured, as the file says; empty: the file
  // does not say. A simulation with measured costs is a prediction.
  std::string measured;
  // --cost has an S or a T, so schedules give every rank a part of the vocabulary.
  bool spreads_vocabulary = false;
  std::vector<std::string> measured_kinds;  // the kinds of "FIWBO" that each stage has there
};

void DeclareCosts(CLI::App& command, CostOptions& options);

// Reads --cost for all stages, and then what --costs FILE.json says for each (kCostsFileHelp
// describes the form). The costs are not yet compared with the sizes of a schedule. Errors:
// kInvalidArgument (FieldError).
absl::StatusOr<StepCosts> ReadCosts(const CostOptions& options);

// Returns a line that says so where results are a prediction, else nothing.
std::string PredictionText(const StepCosts& costs, int num_ranks);

// Checks that there is one value or one for each stage, that links are between existing ranks, and
// that times were measured for all kinds that the schedule has. kInvalidArgument (FieldError): they
// do not fit.
absl::Status CheckCostsFit(const StepCosts& costs, const schedule::Schedule& schedule);

// The help of the commands that take costs.
extern const char kCostsFileHelp[];

}  // namespace takt::cli
