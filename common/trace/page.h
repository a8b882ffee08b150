// SPDX-License-Identifier: Apache-2.0
// A timeline as a page in one file, which loads nothing else. It zooms, and explains what the
// pointer is on.
#pragma once

#include <limits>
#include <string>
#include <string_view>

#include "common/trace/timeline.h"

namespace takt::trace {

struct RankRange {
  int first = 0;
  int count = std::numeric_limits<int>::max();
  bool Has(int rank) const { return rank >= first && rank - first < count; }
};

std::string WritePage(const Timeline& timeline);

// The two parts of the page for a page of another program: the data of some ranks as JSON, and the
// script that draws it (timeline.js). Of messages the data has those between these ranks.
std::string TimelineData(const Timeline& timeline, RankRange ranks = {});
std::string_view TimelineScript();

}  // namespace takt::trace
