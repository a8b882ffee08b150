// SPDX-License-Identifier: Apache-2.0
#include "worker/session/command_fence.h"

#include "absl/strings/str_cat.h"

namespace takt::session {

using control::RefusalCause;

std::optional<control::CommandsRefused> CommandFence::Welcome(const std::string& cluster_id,
                                                              std::int64_t epoch, bool holds) {
  welcomed_id_ = cluster_id;
  refusal_ = RefusalCause::kUnknown;
  std::int64_t& highest = epochs_[cluster_id];
  if (epoch < highest) {
    refusal_ = RefusalCause::kLaterEpoch;
    return control::CommandsRefused{
        .cause = refusal_,
        .reason = absl::StrCat("it has heard of epoch ", highest, " of cluster ", cluster_id,
                               ", and this coordinator has epoch ", epoch,
                               "; end this coordinator, a later one has taken its place")};
  }
  highest = epoch;
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
  cluster_id_ = cluster_id;
  return std::nullopt;
}

bool CommandFence::Refuses(std::int64_t command_epoch) const {
  return refusal_ != RefusalCause::kUnknown || command_epoch < epoch();
}

bool CommandFence::Adopt() {
  if (refusal_ == RefusalCause::kLaterEpoch) return false;
  refusal_ = RefusalCause::kUnknown;
  cluster_id_ = welcomed_id_;
  return true;
}

std::int64_t CommandFence::epoch() const {
  const auto it = epochs_.find(cluster_id_);
  return it == epochs_.end() ? 0 : it->second;
}

}  // namespace takt::session
