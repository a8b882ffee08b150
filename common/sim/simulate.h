// SPDX-License-Identifier: Apache-2.0
// Discrete-event simulation of lowered programs on one machine model: one queue per lane, an
// instruction starts when its waits are met, SEND and RECV of one message meet (rendezvous) and the
// SEND holds its slot until then. Linear in the number of instructions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/cost/costs.h"
#include "common/program/program.h"

namespace takt::sim {

struct RankReport {
  double busy = 0;      // what it computes
  double meetings = 0;  // of the ranks that share its layers, inside what it computes
  // Idle time in four parts, whose sum is makespan - busy - meetings: before the rank's first
  // action, after its last one, gaps in its steady phase (from the start of its first backward to
  // the end of its last forward), and all other gaps (on the ramps up and down, and where all
  // forwards turn to backwards).
  double warmup_idle = 0, cooldown_idle = 0, steady_idle = 0, internal_idle = 0;
  int peak_in_flight = 0;              // microbatch-chunks, each from F to W (or B)
  std::int64_t peak_stash_bytes = 0;   // what F keeps for I and W, in use at once
  std::int64_t peak_buffer_bytes = 0;  // messages, from being made or arriving to their last use
};

struct Event {  // one instruction's place in time
  int pp_rank = 0;
  std::int32_t instruction = 0;  // index in the body
  double start = 0, end = 0;
};

// Says what the slots of a rank hold from `time` until the next of these.
struct HeldBytes {
  double time = 0;
  std::int64_t stash = 0;    // what F keeps for I and W
  std::int64_t buffers = 0;  // messages
};

// A link of the chain that determines the makespan. It begins when the link before it ends.
struct CriticalLink {
  enum class After : std::uint8_t {  // what it had to wait for last
    kNothing,                        // the step begins
    kSameRank,                       // what its rank did before it
    kMessage,    // a message's arrival, or the link's being free for it, or a meeting's end
    kReduction,  // a sum of gradients over ranks
    kOptimizer,  // the barrier before the optimizer
  };
  After after = After::kNothing;
  int pp_rank = 0;               // of a message: its sender
  std::int32_t instruction = 0;  // index in the rank's body
  std::string action;            // "2F0", "2SEND_F0", "REDUCE_GRAD(3)", "OPT"
  double start = 0, end = 0;     // end: the next link's start
};

// "nothing", "same rank", "message", "reduction", "optimizer".
std::string_view Name(CriticalLink::After after);

struct Report {
  double makespan = 0;  // to the last compute; meetings, reductions and OPT count if they take time
  // The time that each step after the first adds, or where steps overlap each of the second half.
  // If only one is simulated, it is the makespan.
  double step_time = 0;
  double step_bubble_fraction = 0;  // 1 - busy / (P * step_time)
  double bubble_fraction = 0;       // 1 - busy / (P * makespan)
  double span_bubble_fraction = 0;  // by the longest (last end - first start) of one rank
  std::vector<RankReport> ranks;
  std::vector<Event> events;  // compute instructions, by rank and start
  std::int64_t num_messages = 0;
  // A chain from 0 to makespan without a gap. Of several such chains it is the one that stays on a
  // rank where it can.
  std::vector<CriticalLink> critical_path;
  // What each rank holds over time, if the options ask for it. The first entry is at 0. Several
  // entries at one time follow each other in this order. The largest ones are the rank's peaks.
  std::vector<std::vector<HeldBytes>> held;

  int peak_in_flight() const;  // the largest over ranks
};

struct SimulateOptions {
  // So many steps follow each other. All but `step_time` is about the first one.
  int steps = 1;
  // NORM_EXCHANGE makes all ranks wait for one another before OPT. Without it each rank goes on
  // when its own gradients are complete, and steps are staggered.
  bool barrier = true;
  bool follow_memory = false;  // fill Report::held
};

// kInvalidArgument: the costs or steps make no sense, or the programs never complete.
absl::StatusOr<Report> Simulate(const std::vector<program::Program>& programs,
                                const cost::Costs& costs, const SimulateOptions& options = {});

}  // namespace takt::sim
