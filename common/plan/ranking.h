// SPDX-License-Identifier: Apache-2.0
// Compares the ways to run a job among which its spec leaves the choice.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/candidate.h"
#include "common/plan/plan.h"
#include "common/plan/ways.h"

namespace takt::plan {

struct Ranking {
  // Those that fit the workers, at most as many as asked for. The first is the smallest of those
  // whose step is within 1 % of the shortest; the others follow by their steps. If none fits, it is
  // the one that needs least memory, alone.
  std::vector<Candidate> candidates;
  std::vector<Refusal> refused;
};

// Returns whether every rank's memory is enough.
bool Fits(const Candidate& candidate, const PlanOptions& options);

// Returns the memory of the rank that needs most of what counts (CountedBytes).
const MemoryBytes& Largest(const Candidate& candidate, const PlanOptions& options);

// Describes a candidate that is left out.
Refusal RefusalOf(JobInputs& inputs, const Candidate& candidate, std::string reason);

// Compares the ways to divide the job (ways.h), schedules and, if the job leaves that open, what is
// computed again, as MakePlan describes it. Precondition: top >= 1. Errors: kInvalidArgument
// (FieldError): no candidate can be made; why not the first one.
absl::StatusOr<Ranking> RankCandidates(JobInputs& inputs, std::size_t top);

}  // namespace takt::plan
