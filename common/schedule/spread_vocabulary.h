// SPDX-License-Identifier: Apache-2.0
// A pass over schedules: from one whose last stage has the head to one whose ranks all have blocks
// of the vocabulary.
// Source: vocabulary parallelism, Yeung et al. 2024 (arXiv:2411.05288), Algorithm 1. We place S and
// T by running the rows instead of inserting fixed intervals, so the pass serves every family.
#pragma once

#include "absl/status/statusor.h"
#include "common/cost/costs.h"
#include "common/schedule/schedule.h"

namespace takt::schedule {

// Returns `schedule` with an S and a T of every microbatch on every rank.
// 1. On every rank each I, W and B moves to after `depth` more forwards, as far as there are any. A
//    rank then holds at most `depth` microbatch-chunks more. Where a rank has several stages, some
//    depths let ranks wait for each other.
// 2. The rows are run with the given costs. Before a rank begins its next action it takes T if one
//    is ready, else S if one is ready. Only what is ready is placed, so the result is legal.
// Overlapped pairs become an F and a B that stand alone. The time is O(n log n) for n actions.
// schedule: valid, and does not spread the vocabulary. costs: as cost::CheckCosts wants them.
// kInvalidArgument (FieldError): there is no flush, there are two copies of the weights, the depth
// is negative or does not fit the schedule, or the last stage does not run its microbatches in
// ascending order.
absl::StatusOr<Schedule> SpreadVocabulary(const Schedule& schedule, const cost::Costs& costs,
                                          int depth);

}  // namespace takt::schedule
