// SPDX-License-Identifier: Apache-2.0
// Computes the router of a mixture of experts. It computes in double, in one order for all
// processors: one other choice moves a result more than all rounding does.
#pragma once

#include "worker/backend/cpu/thread_team.h"
#include "worker/backend/ops.h"

namespace takt::backend {

// Thread: the caller of the team's loops.
void Route(const RouteTokens& op, ThreadTeam& team);
void RouteBackward(const RouteTokensBackward& op, ThreadTeam& team);

}  // namespace takt::backend
