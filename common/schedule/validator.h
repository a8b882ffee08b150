// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/schedule/schedule.h"

namespace takt::schedule {

struct ValidateOptions {
  int max_in_flight = 0;  // microbatch-chunks per rank; 0: no limit
};

// The rules of a synchronous schedule, each with an error of its own (kInvalidArgument) that prints
// the grid with the guilty cell marked: exactly one F and one B (or one I and one W) for each
// (stage, microbatch); each on the rank that the placement says, under bidirectional each
// microbatch one way and some each way; only an F joins, and the B of another microbatch; F before
// I before W in the row; data dependencies acyclic together with every row, an overlapped pair
// waiting for the inputs of both; in flight within the limit.
absl::Status Validate(const Schedule& schedule, const ValidateOptions& options = {});

// What is legal but deserves a word, e.g. weight gradients of a stage not in ascending microbatch
// order.
std::vector<std::string> Warnings(const Schedule& schedule);

// Peak of microbatch-chunks in flight by rank: from F to W (or B).
std::vector<int> PeakInFlight(const Schedule& schedule);

}  // namespace takt::schedule
