// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "common/program/program.h"
#include "worker/engine/engine.h"
#include "worker/session/job_update.h"

namespace takt::session {

// What a rank is doing as far as its engine knows: the instruction it is at, for how long, what it
// really waits for, and the last ones it has done. Leaves the rest of `status` as it is.
void Describe(const engine::Engine& engine, const program::Program& program, RankStatus& status);

}  // namespace takt::session
