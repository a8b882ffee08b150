// SPDX-License-Identifier: Apache-2.0
#include "worker/session/command_fence.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace takt::session {

using control::RefusalCause;

std::optional<control::CommandsRefused> CommandFence::Welcome(const std::string& cluster_id,
                                                              std::int64_t epoch, bool holds) {
  welcomed_id_ = cluster_id;
  welcomed_epoch_ = epoch;
  refusal_ = RefusalCause::kUnknown;
  if (holds && !cluster_id_.empty() && cluster_id != cluster_id_) {
    refusal_ = RefusalCause::kOtherCluster;
    return control::CommandsRefused{
        .cause = refusal_,
        .reason = absl::StrCat("it holds a rank of cluster ", cluster_id_,
                               ", and this coordinator's state is of cluster ",
                               cluster_id.empty() ? "(none)" : cluster_id,
                               "; start the coordinator with the state of the job (--state), or "
                               "adopt or abandon the job")};
  }
  if (cluster_id == cluster_id_ && epoch < epoch_) {
    refusal_ = RefusalCause::kLaterEpoch;
    return control::CommandsRefused{
        .cause = refusal_,
        .reason = absl::StrCat("it has heard of epoch ", epoch_, " of cluster ", cluster_id_,
                               ", and this coordinator has epoch ", epoch,
                               "; end this coordinator, a later one has taken its place")};
  }
  cluster_id_ = cluster_id;
  epoch_ = epoch;
  return std::nullopt;
}

bool CommandFence::Refuses(std::int64_t epoch) const {
  return refusal_ != RefusalCause::kUnknown || epoch < epoch_;
}

bool CommandFence::Adopt() {
  if (refusal_ == RefusalCause::kLaterEpoch) return false;
  refusal_ = RefusalCause::kUnknown;
  cluster_id_ = welcomed_id_;
  epoch_ = welcomed_epoch_;
  return true;
}

}  // namespace takt::session
