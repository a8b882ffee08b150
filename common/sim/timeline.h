// SPDX-License-Identifier: Apache-2.0
// A simulated step in the form that schedule::RenderGrid and RenderSvg draw.
#pragma once

#include <vector>

#include "common/program/program.h"
#include "common/schedule/render.h"
#include "common/sim/simulate.h"

namespace takt::sim {

// Returns the kind of a compute op. An O counts as its F.
schedule::ActionKind KindOf(program::Op op);

// programs: those that were simulated for `report`.
schedule::Timeline MakeTimeline(const std::vector<program::Program>& programs,
                                const Report& report);

}  // namespace takt::sim
