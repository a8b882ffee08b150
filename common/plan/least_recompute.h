// SPDX-License-Identifier: Apache-2.0
// Chooses what each stage computes again, for jobs that leave it open.
#pragma once

#include <functional>

#include "absl/status/statusor.h"
#include "common/plan/candidate.h"

namespace takt::plan {

// Makes a candidate whose stages compute again what inputs.recompute says.
using MakeCandidate = std::function<absl::StatusOr<Candidate>(const CandidateInputs&)>;

// Returns the candidate whose stages compute nothing again, if that fits the workers' memory. Else
// each rank computes as little again as fits: its stages nothing, selective or full. If that is not
// enough, all stages compute everything again, and the candidate may still not fit. Ranks that hold
// fewer microbatches in flight so pay less. inputs.recompute is not read. Errors: those of `make`.
absl::StatusOr<Candidate> WithLeastRecompute(CandidateInputs inputs, const MakeCandidate& make);

// Returns the modes of the stages, or of all of them one if they are equal.
std::vector<model::Recompute> RecomputeOf(const Candidate& candidate);

}  // namespace takt::plan
