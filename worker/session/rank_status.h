// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "common/control/rank_status.h"
#include "common/program/program.h"
#include "worker/engine/engine.h"

namespace takt::session {

// Fills in what a rank is doing as far as its engine knows: the instruction that it is at, for how
// long, what it really waits for, and the last instructions that it completed. Leaves the rest of
// `status` as it is.
void Describe(const engine::Engine& engine, const program::Program& program,
              control::RankStatus& status);

}  // namespace takt::session
