// SPDX-License-Identifier: Apache-2.0
#include "common/program/unrolled_schedule.h"

#include <algorithm>
#include <string_view>

#include "common/base/status.h"

namespace takt::program {
namespace {

using schedule::Action;
using schedule::ActionKind;
using schedule::Row;
using schedule::Schedule;

bool IsForward(const Action& action) { return action.kind == ActionKind::kForward; }

bool MakesInputGrad(const Action& action) {
  return action.kind == ActionKind::kInputGrad || action.kind == ActionKind::kBackward;
}

// Returns how many forwards of a step run before it begins: those before its first backward, but
// one.
int NumForwardsAhead(const Row& row) {
  return static_cast<int>(std::find_if_not(row.begin(), row.end(), IsForward) - row.begin()) - 1;
}

// Returns the first `ahead` forwards, then two steps. In each of them the first `ahead` forwards of
// the next step come before its last `ahead` backwards, one before each.
Row UnrollRow(const Row& row, int ahead, int num_microbatches) {
  Row unrolled(row.begin(), row.begin() + ahead);
  const auto add = [&](Action action, int step) {
    action.microbatch = MicrobatchId(action.microbatch.value() + step * num_microbatches);
    unrolled.push_back(action);
  };
  for (int step = 0; step < 2; ++step) {
    int backwards_left = num_microbatches;
    for (std::size_t position = ahead; position < row.size(); ++position) {
      if (MakesInputGrad(row[position]) && --backwards_left < ahead) {
        add(row[ahead - 1 - backwards_left], step + 1);
      }
      add(row[position], step);
    }
  }
  return unrolled;
}

// Returns whether the forwards, the gradients of inputs and those of weights each come microbatch
// by microbatch, on their own.
bool IsInOrder(const Row& row) {
  int forwards = 0, input_grads = 0, weight_grads = 0;
  return std::all_of(row.begin(), row.end(), [&](const Action& action) {
    const int m = action.microbatch.value();
    if (IsForward(action)) return m == forwards++ && !action.joins_next;
    const bool ok = !MakesInputGrad(action) || m == input_grads++;
    return ok && (action.kind == ActionKind::kInputGrad || m == weight_grads++);
  });
}

absl::Status Refuse(const Schedule& schedule, std::string_view rule) {
  return InvalidField({.field = "schedule",
                       .value = schedule.name,
                       .rule = std::string(rule),
                       .fix = "use pipedream or pipedream-2bw as they are generated"});
}

}  // namespace

absl::StatusOr<UnrolledSchedule> Unroll(const Schedule& schedule) {
  UnrolledSchedule unrolled{.schedule = schedule, .num_microbatches = schedule.num_microbatches};
  if (schedule.updates == schedule::Updates::kFlush) {
    for (const Row& row : schedule.ranks) {
      unrolled.prologue_end.push_back(0);
      unrolled.body_end.push_back(static_cast<int>(row.size()));
    }
    return unrolled;
  }
  const std::string_view kInOrder =
      "without a flush, each rank runs one stage, microbatch by microbatch in ascending order";
  if (schedule.placement != schedule::Placement::kLoop ||
      schedule.num_stages != schedule.num_ranks()) {
    return Refuse(schedule, kInOrder);
  }
  unrolled.schedule.num_microbatches = 3 * schedule.num_microbatches;
  for (Row& row : unrolled.schedule.ranks) {
    const int length = static_cast<int>(row.size());
    const int ahead = NumForwardsAhead(row);
    unrolled.prologue_end.push_back(ahead);
    unrolled.body_end.push_back(ahead + length);
    row = UnrollRow(row, ahead, schedule.num_microbatches);
    if (!IsInOrder(row)) return Refuse(schedule, kInOrder);
  }
  // Otherwise it would add the losses of two steps. The other ranks run as many ahead as the rank
  // after them, or more: in a valid schedule their first backward comes after all forwards that the
  // next rank needs for its own. So no rank waits for another one in a cycle.
  if (unrolled.prologue_end.back() > 0) {
    return Refuse(schedule, "without a flush, the last rank runs no forward ahead");
  }
  return unrolled;
}

}  // namespace takt::program
