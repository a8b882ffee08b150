// SPDX-License-Identifier: Apache-2.0
// Proves that lowered programs may run.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "common/program/program.h"
#include "common/schedule/schedule.h"
#include "common/sim/contributions.h"

namespace takt::sim {

struct ProofOptions {
  // The messages of both directions from one rank to another share one queue, as with NCCL and one
  // communicator, instead of having one each.
  bool one_fifo_per_pair = false;
  // Most bytes that the slots of each rank may have together, by rank; empty: any.
  std::vector<std::int64_t> byte_limits;
  ExpectedSums sums;
  // The schedule that the programs were lowered from. A refusal shows its grid, with the guilty
  // cell marked. Borrowed; may be null.
  const schedule::Schedule* schedule = nullptr;
};

// Proves for any costs and any number of steps, with a flush or without:
// - every instruction finds in its slots what it is about (dataflow.h);
// - all ranks together compute each gradient once, with its scale (contributions.h);
// - no rank's slots need more bytes than its limit;
// - with rendezvous sends everything completes, messages are received in the order in which they
//   are sent, and sums over ranks meet in the same order on all of them.
// One run of the bodies shows the last point. Lanes only ever wait for something to have happened,
// so whether they complete does not depend on time. One step leaves no message and no meeting
// behind, so the next one runs as the first did.
// kInvalidArgument: the reason. Where it is that instructions wait for one another, it names them.
absl::Status Prove(const std::vector<program::Program>& programs, const ProofOptions& options = {});

}  // namespace takt::sim
