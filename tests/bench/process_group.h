// SPDX-License-Identifier: Apache-2.0
// Runs the ranks of one measurement as processes of this machine.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/transport/transport.h"

namespace takt::bench {

// Forks num_ranks processes. `body` runs in each of them and returns a text; the result has the
// texts by rank. If a rank fails, the others are killed and its status is returned. The calling
// process must have no other threads.
using RankBody = std::function<absl::StatusOr<std::string>(Rank, transport::Rendezvous&)>;
absl::StatusOr<std::vector<std::string>> RunProcesses(int num_ranks, const RankBody& body);

// Returns the transport options of one rank on the loopback interface.
transport::TransportOptions LoopbackOptions(Rank rank, int num_ranks);

}  // namespace takt::bench
