// SPDX-License-Identifier: Apache-2.0
#include "coordinator/job/rank_names.h"

#include "absl/strings/str_cat.h"
#include "common/base/counted.h"

namespace takt::job {

std::string NameOf(const control::BoundRank& bound) {
  return absl::StrCat("rank ", bound.rank.value(), " (", bound.worker, ")");
}

void RankNames::Add(const control::BoundRank& bound) {
  if (count_ < kMostNamedRanks) absl::StrAppend(&first_, count_ > 0 ? ", " : "", NameOf(bound));
  ++count_;
}

std::string RankNames::ToString() const {
  if (count_ <= kMostNamedRanks) return first_;
  return absl::StrCat(first_, " and ", Counted(count_ - kMostNamedRanks, "other"));
}

}  // namespace takt::job
