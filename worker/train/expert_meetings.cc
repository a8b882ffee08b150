// SPDX-License-Identifier: Apache-2.0
#include "worker/train/expert_meetings.h"

#include "common/base/status.h"
#include "common/model/parts.h"

namespace takt::train {

ExpertMeetings::ExpertMeetings(const Options& options) : options_(options) {
  TAKT_CHECK(options_.group != nullptr && options_.cursor != nullptr &&
             options_.group->size() == options_.share.size &&
             options_.group->index() == options_.share.index);
}

absl::Status ExpertMeetings::Meet(absl::FunctionRef<absl::Status()> meeting) {
  return options_.cursor->Meet(model::PartKind::kExchange, model::PartGroup::kExpert, meeting);
}

ExpertMeetings::Surplus& ExpertMeetings::SurplusOf(const std::int32_t* counts) {
  if (options_.surplus_of != nullptr) return options_.surplus_of->SurplusOf(counts);
  absl::MutexLock lock(&mutex_);
  return surplus_[counts];
}

void ExpertMeetings::Free(const std::int32_t* counts) {
  if (options_.surplus_of != nullptr) return options_.surplus_of->Free(counts);
  absl::MutexLock lock(&mutex_);
  surplus_.erase(counts);
}

std::size_t ExpertMeetings::num_surplus() const {
  if (options_.surplus_of != nullptr) return options_.surplus_of->num_surplus();
  absl::MutexLock lock(&mutex_);
  return surplus_.size();
}

}  // namespace takt::train
