// SPDX-License-Identifier: Apache-2.0
// Discrete-event simulation of lowered programs, and the proof that they complete, on one machine
// model: one queue per lane, an instruction starts when its waits are met, SEND and RECV of one
// message meet (rendezvous) and the SEND holds its slot until then. Linear in the number of
// instructions.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/cost/costs.h"
#include "common/program/program.h"

namespace takt::sim {

struct RankReport {
  double busy = 0;
  // Idle before the rank's first backward starts, after its last forward, and between: their sum is
  // makespan - busy.
  double warmup_idle = 0, steady_idle = 0, cooldown_idle = 0;
  int peak_in_flight = 0;
  std::int64_t peak_stash_bytes = 0;
};

struct Event {  // one instruction's place in time
  int pp_rank = 0;
  std::int32_t instruction = 0;  // index in the body
  double start = 0, end = 0;
};

struct Report {
  double makespan = 0;         // to the last F, I, W or B; to the last OPT if that costs anything
  double bubble_fraction = 0;  // 1 - busy / (P * makespan)
  double span_bubble_fraction = 0;  // by the longest (last end - first start) of one rank
  std::vector<RankReport> ranks;
  std::vector<Event> events;  // F, I, W and B, by rank and start
  std::int64_t num_messages = 0;
};

// One step. Errors: kInvalidArgument as Prove.
absl::StatusOr<Report> Simulate(const std::vector<program::Program>& programs,
                                const cost::Costs& costs);

// Completes for any costs, two steps in a row, with rendezvous sends; message order agrees on every
// ordered pair of ranks and direction; each instruction's slots are used as the rules say.
// kInvalidArgument: what waits for what, as a cycle.
absl::Status Prove(const std::vector<program::Program>& programs);

}  // namespace takt::sim
