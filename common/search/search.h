// SPDX-License-Identifier: Apache-2.0
// Finds a schedule for given costs and memory: `auto`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/cost/costs.h"
#include "common/schedule/lower_bound.h"
#include "common/schedule/schedule.h"

namespace takt::search {

struct Request {
  int num_ranks = 1, num_microbatches = 1;
  // Numbers of chunks a rank; empty: 1, 2 and 4. Costs that come by stage fix the number.
  std::vector<int> num_chunks;
  // Empty: loop, and v where a rank has two chunks. Bidirectional has two copies of the weights, so
  // it is searched only on demand.
  std::vector<schedule::Placement> placements;
  cost::Costs costs;
  // Replicas share the optimizer's state, so the sum of a stage's gradients ends with the scatter.
  // The gather follows the update, whatever the order of actions is.
  bool shares = false;
  std::vector<std::int64_t> message_bytes;  // after each stage; empty: 0
  // Microbatch-chunks that a rank may hold in flight. Empty: no limit; one entry: the same for all
  // ranks; else one a rank.
  std::vector<int> max_in_flight;
  // The same in bytes, given what each stage holds per microbatch.
  std::vector<std::int64_t> max_bytes, stash_bytes;

  std::uint64_t seed = 1;
  std::int64_t max_candidates = 30'000;  // orders that are timed, for each placement and V
  absl::Duration max_time = absl::Seconds(5);
};

struct Found {
  schedule::Schedule schedule;  // named "auto"
  std::string origin;           // what it grew from, e.g. "zb-1p"
  double makespan = 0;
  schedule::Bound bound;  // of the same placement and chunks
  double gap = 0;         // makespan / bound.makespan - 1
  std::int64_t num_candidates = 0;
  bool time_capped = false;  // the clock ended it, so another run may find another schedule
};

absl::StatusOr<Found> Search(const Request& request);

}  // namespace takt::search
