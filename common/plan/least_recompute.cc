// SPDX-License-Identifier: Apache-2.0
#include "common/plan/least_recompute.h"

#include <algorithm>
#include <vector>

#include "common/base/status.h"
#include "common/plan/ranking.h"

namespace takt::plan {
namespace {

using model::Recompute;

// Returns the modes of the stages, given those of the ranks. A stage with two copies takes the mode
// that computes more.
std::vector<Recompute> OfStages(const Candidate& candidate, const std::vector<Recompute>& of_rank) {
  std::vector<Recompute> modes(candidate.plan.partition.size(), Recompute::kNone);
  for (std::size_t rank = 0; rank < of_rank.size(); ++rank) {
    for (const StageId stage : program::HeldStages(candidate.plan.programs[rank])) {
      Recompute& mode = modes[stage.value()];
      mode = std::max(mode, of_rank[rank]);
    }
  }
  return modes;
}

}  // namespace

std::vector<Recompute> RecomputeOf(const Candidate& candidate) {
  std::vector<Recompute> modes;
  for (const mesh::Stage& stage : candidate.plan.partition) modes.push_back(stage.recompute);
  if (std::ranges::count(modes, modes.front()) == std::ssize(modes)) modes.resize(1);
  return modes;
}

absl::StatusOr<Candidate> WithLeastRecompute(CandidateInputs inputs, const MakeCandidate& make) {
  const std::int64_t room = inputs.options.worker_memory_bytes;
  inputs.recompute = {Recompute::kNone};
  absl::StatusOr<Candidate> candidate = make(inputs);
  if (!candidate.ok() || Fits(*candidate, inputs.options)) return candidate;
  // The memory of a rank depends on its own stages.
  std::vector<Recompute> of_rank(candidate->plan.memory.size(), Recompute::kFull);
  const auto take_where_it_fits = [&](const Candidate& with_mode, Recompute mode) {
    for (std::size_t rank = 0; rank < of_rank.size(); ++rank) {
      if (CountedBytes(with_mode.plan.memory[rank], inputs.options.device) <= room)
        of_rank[rank] = mode;
    }
  };
  inputs.recompute = {Recompute::kSelective};
  ASSIGN_OR_RETURN(const Candidate selective, make(inputs));
  take_where_it_fits(selective, Recompute::kSelective);
  take_where_it_fits(*candidate, Recompute::kNone);
  inputs.recompute = OfStages(*candidate, of_rank);
  candidate = make(inputs);
  if (candidate.ok() && Fits(*candidate, inputs.options)) return candidate;
  inputs.recompute = {Recompute::kFull};
  return make(inputs);
}

}  // namespace takt::plan
