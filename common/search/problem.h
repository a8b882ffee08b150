// SPDX-License-Identifier: Apache-2.0
// The problem of a search in flat arrays: which rank runs what for how long, and what it may hold.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "common/schedule/holders.h"
#include "common/schedule/schedule.h"
#include "common/search/search.h"

namespace takt::search {

inline constexpr double kNever = std::numeric_limits<double>::infinity();

using Kind = schedule::ActionKind;

// An action without its microbatch. Microbatches are alike, so exchanging their labels turns any
// schedule into one where each kind of a stage takes them in ascending order, without moving an
// action in time. So the k-th F of a holder is of its k-th microbatch, and the order of a rank is a
// word.
struct Step {
  std::int16_t holder = 0;
  Kind kind = Kind::kForward;

  bool operator==(const Step&) const = default;
};
using Row = std::vector<Step>;
using Rows = std::vector<Row>;  // by rank

// The way of a message. The message waits for the one before it on the same way, then occupies it.
struct Way {
  double latency = 0, occupies = 0;
  int lane = -1;  // -1: nothing to wait for
};

struct Holder {
  int rank = 0, count = 0;  // microbatches that pass
  int previous = -1, next = -1;
  int first_item = 0;  // of its microbatches in arrays over all holders
  double forward = 0, input_grad = 0, weight_grad = 0, backward = 0;
  Way activation, gradient;  // from the previous holder, to the previous holder
  double reduction = 0;      // of its gradients, beside compute, after its last W or B
  std::int64_t weight = 1;   // of one of its microbatches in flight, against the limit of the rank
};

struct Problem {
  schedule::Placement placement = schedule::Placement::kLoop;
  int num_ranks = 0, num_stages = 0, num_microbatches = 0;
  int num_items = 0;  // (holder, microbatch)
  int num_lanes = 0;
  double tied_reduction = 0;  // of the first and the last stage together, after their gradients
  std::vector<Holder> holders;
  std::vector<schedule::Holder> chains;           // the same, as the schedule knows them
  std::vector<std::vector<int>> holders_of_rank;  // by stage
  std::vector<std::int64_t> limit;                // of a rank, in weights

  bool has_reductions() const {
    return tied_reduction > 0 ||
           std::any_of(holders.begin(), holders.end(),
                       [](const Holder& holder) { return holder.reduction > 0; });
  }
  int num_actions() const { return 3 * num_items; }
};

Problem MakeProblem(const Request& request, schedule::Placement placement, int num_chunks);

// Returns the schedule of `rows`, with microbatches. An I with its own W right after it becomes a B
// where that costs nothing more.
schedule::Schedule ToSchedule(const Problem& problem, const Rows& rows);

// Returns the rows of a schedule of this size. Microbatches lose their labels, as explained at Row.
Rows FromSchedule(const Problem& problem, const schedule::Schedule& schedule);

// Returns whether each rank's peak is within its limit.
bool Fits(const Problem& problem, const Rows& rows);

}  // namespace takt::search
