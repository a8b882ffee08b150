// SPDX-License-Identifier: Apache-2.0
#include "worker/train/expert_meetings.h"

#include "common/base/status.h"
#include "common/model/parts.h"

namespace takt::train {

absl::StatusOr<std::unique_ptr<ExpertMeetings>> ExpertMeetings::Create(const Options& options) {
  std::unique_ptr<ExpertMeetings> meetings(new ExpertMeetings(options));
  ASSIGN_OR_RETURN(meetings->exchange_, ExpertExchange::Create({.group = options.group,
                                                                .backend = options.backend,
                                                                .experts = options.experts}));
  return meetings;
}

ExpertMeetings::ExpertMeetings(const Options& options) : options_(options) {
  TAKT_CHECK(options_.group != nullptr && options_.cursor != nullptr &&
             options_.group->size() == options_.share.size &&
             options_.group->index() == options_.share.index);
}

absl::Status ExpertMeetings::Meet(absl::FunctionRef<absl::Status()> meeting) {
  return options_.cursor->Meet(model::PartKind::kExchange, model::PartGroup::kExpert, meeting);
}

ExpertMeetings::Arrived& ExpertMeetings::ArrivedAt(const std::int32_t* offsets) {
  if (options_.arrivals_of != nullptr) return options_.arrivals_of->ArrivedAt(offsets);
  absl::MutexLock lock(&mutex_);
  return arrived_[offsets];
}

}  // namespace takt::train
