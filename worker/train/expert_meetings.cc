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

}  // namespace takt::train
