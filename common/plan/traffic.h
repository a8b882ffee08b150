// SPDX-License-Identifier: Apache-2.0
// Says what the ranks of a plan send to one another in a step.
#pragma once

#include <cstdint>
#include <vector>

#include "common/base/id.h"
#include "common/plan/plan.h"
#include "common/program/program.h"

namespace takt::plan {

// The messages of a step from one rank of a pipeline to another one.
struct Messages {
  PpRank from, to;
  std::int64_t bytes = 0;  // of all of them together
  std::int64_t count = 0;
};

// Returns the messages of one pipeline, by sender and then by receiver. Ranks that send each other
// none are left out. It counts only those meetings of a spread vocabulary that pass the whole
// activation of a microbatch, or its gradient, from or to the rank with the last stage.
std::vector<Messages> MessagesOf(const std::vector<program::Program>& programs);

// What each rank that holds the stages of `from` sends in sums of gradients to each other one that
// holds those of `to`, which may be the same stages.
struct SumTraffic {
  PpRank from, to;
  // The ranks of one pipeline sum, as both ends of a tied embedding do; false: all data-parallel
  // ranks do.
  bool within_pipeline = false;
  double bytes = 0;
};

// Returns the traffic of all sums of a step. A sum over n ranks of t terms each sends (t + 1) / n
// of its bytes from each of them to each other one (worker/transport/channel_collective.h).
std::vector<SumTraffic> SumTrafficOf(const Plan& plan);

}  // namespace takt::plan
