// SPDX-License-Identifier: Apache-2.0
// Looks for a partition of layers and of words that shortens the simulated step of a schedule.
#pragma once

#include "common/plan/candidate.h"

namespace takt::plan {

// Moves layers from stage to stage as long as the simulated step becomes shorter, and returns the
// candidate over the partition that was best. The cut that it begins with makes the largest stage
// least, but a rank with several stages has their sum, and a short last stage empties the pipeline
// sooner. No rank gets more work than the busiest had: else small models, whose messages cost more
// than their layers, would end up on one rank. A partition that the job names stays, and so does
// that of a schedule whose stages have two copies, or that does not flush: there losses depend on
// it. If the vocabulary is spread, blocks of words move too, from one rank to the next, also where
// the job names the partition. What fitted the workers' memory still fits.
Candidate WithBetterPartition(const CandidateInputs& inputs, Candidate candidate);

}  // namespace takt::plan
