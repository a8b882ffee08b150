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

// Checks the rules of a schedule's step. Each rule has an error of its own (kInvalidArgument),
// which prints the grid with the guilty cell marked:
// - each (stage, microbatch) has exactly one F and one B, or one F, one I and one W;
// - each action is on the rank that the placement says; under bidirectional each microbatch goes
//   one way, and some go each way;
// - only an F joins, and what it joins is the B of another microbatch;
// - in the row F comes before I, and I before W;
// - data dependencies and rows together have no cycle, where an overlapped pair waits for the
//   inputs of both its halves;
// - where the vocabulary is spread, there is a flush and one copy of the weights, every rank has
//   one S and one T for each microbatch, both in ascending order, and S comes before T; elsewhere
//   there are none;
// - no rank has more in flight than the limit.
absl::Status Validate(const Schedule& schedule, const ValidateOptions& options = {});

// Returns whether every stage accumulates weight gradients in ascending order of microbatches.
bool AccumulatesInOrder(const Schedule& schedule);

// Says what is legal and may surprise, for example weight gradients of a stage that do not come in
// ascending order of microbatches.
std::vector<std::string> Warnings(const Schedule& schedule);

// Returns the peak of microbatch-chunks in flight by rank. Each is in flight from F to W (or B).
std::vector<int> PeakInFlight(const Schedule& schedule);

}  // namespace takt::schedule
