// SPDX-License-Identifier: Apache-2.0
// Muon's update of one matrix, as products and sums that the backend runs.
#pragma once

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "worker/backend/cpu/thread_team.h"
#include "worker/backend/ops.h"

namespace takt::backend {

// run: runs a product or a sum of squares on the same team.  Thread: the caller of the team's
// loops.  Errors: those of `run`.
absl::Status UpdateByMuon(const MuonUpdate& op, ThreadTeam& team,
                          absl::FunctionRef<absl::Status(const Op&)> run);

}  // namespace takt::backend
