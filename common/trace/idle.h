// SPDX-License-Identifier: Apache-2.0
// Finds why compute lanes ran nothing.
#pragma once

#include <vector>

#include "common/trace/timeline.h"

namespace takt::trace {

// The idle time of every compute lane, cut where its cause changes. timeline: has everything except
// `idle` and what was predicted.
std::vector<Idle> FindIdle(const Timeline& timeline);

}  // namespace takt::trace
