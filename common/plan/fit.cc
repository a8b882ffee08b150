// SPDX-License-Identifier: Apache-2.0
#include "common/plan/fit.h"

#include <algorithm>
#include <vector>

#include "common/base/status.h"
#include "common/plan/ranking.h"
#include "common/plan/worker_programs.h"

namespace takt::plan {
namespace {

// Returns whether the job leaves open whether ranks free weights that their replicas share, which
// they cannot without a barrier.
bool ChoosesToFree(const CandidateInputs& inputs) {
  const config::Parallelism& asked = inputs.job.parallelism;
  return asked.shard == config::Shard::kParameters && asked.reshard == config::Reshard::kAuto &&
         inputs.num_replicas() > 1 && inputs.job.barrier != config::Barrier::kNever;
}

// Returns whether `error` says that a schedule leaves no weights to free, or cannot free them. Any
// other error of a candidate that frees weights is one of ours, which nothing hides.
bool CannotFree(const absl::Status& error) {
  const std::vector<FieldError> errors = FieldErrorsOf(error);
  return !errors.empty() && std::ranges::all_of(errors, [](const FieldError& each) {
    return each.field == "parallelism.reshard_after_forward";
  });
}

}  // namespace

bool ChoosesRecompute(const CandidateInputs& inputs) {
  return inputs.job.parallelism.recompute.empty() &&
         inputs.job.model.family != model::Family::kEmulated;
}

bool ChoosesShares(const CandidateInputs& inputs) {
  const bool overlaps = inputs.job.barrier == config::Barrier::kNever;
  const int protocol = PacksShards(inputs.job) ? kPackedShardsProtocolVersion
                       : overlaps              ? kForeseenShardsProtocolVersion
                                               : kAllFieldsProtocolVersion;
  return inputs.job.parallelism.shard == config::Shard::kAuto && inputs.num_replicas() > 1 &&
         inputs.options.oldest_protocol >= protocol && !inputs.job.muon.has_value() &&
         !inputs.model.experts.shares() && inputs.model.tensor.leaves_here() == 1;
}

absl::StatusOr<Candidate> MakeToFit(CandidateInputs inputs, const MakeCandidate& make) {
  if (ChoosesShares(inputs)) {
    absl::StatusOr<Candidate> whole = make(inputs);
    if (!whole.ok() || Fits(*whole, inputs.options)) return whole;
    inputs.shares = true;
  }
  if (ChoosesToFree(inputs)) {
    absl::StatusOr<Candidate> whole = make(inputs);
    if (!whole.ok() || Fits(*whole, inputs.options)) return whole;
    inputs.frees = true;
    const absl::Status error = make(inputs).status();
    if (!error.ok() && !CannotFree(error)) return error;
    inputs.frees = error.ok();
  }
  return ChoosesRecompute(inputs) ? WithLeastRecompute(inputs, make) : make(inputs);
}

}  // namespace takt::plan
