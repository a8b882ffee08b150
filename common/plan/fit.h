// SPDX-License-Identifier: Apache-2.0
// Makes candidates fit the workers' memory, for jobs that leave open how: replicas share the
// optimizer's state, ranks free weights, or stages recompute activations instead of keeping them.
#pragma once

#include "absl/status/statusor.h"
#include "common/plan/candidate.h"
#include "common/plan/least_recompute.h"

namespace takt::plan {

// Returns whether the job leaves open what stages compute again. Emulated layers keep nothing.
bool ChoosesRecompute(const CandidateInputs& inputs);

// Returns whether the job leaves open whether replicas share the optimizer's state. None share
// where a job that asks for it is refused: with Muon, shared experts, more leaves than tensor
// ranks, or without a barrier beside older workers.
bool ChoosesShares(const CandidateInputs& inputs);

// Makes a candidate with the least of what the job leaves open that fits; it may still not fit. It
// tries these in the order of what they cost: sharing takes less time than computing again.
// Errors: those of `make`.
absl::StatusOr<Candidate> MakeToFit(CandidateInputs inputs, const MakeCandidate& make);

}  // namespace takt::plan
