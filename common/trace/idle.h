// SPDX-License-Identifier: Apache-2.0
// Why compute lanes ran nothing.
#pragma once

#include <vector>

#include "common/trace/timeline.h"

namespace takt::trace {

// The idle time of every compute lane, cut where its cause changes. slices, prologue: as of a
// Timeline.
std::vector<Idle> FindIdle(const JobTrace& trace, const std::vector<Slice>& slices,
                           const std::vector<Slice>& prologue);

}  // namespace takt::trace
