// SPDX-License-Identifier: Apache-2.0
// Ranks that compute on one device take turns, so that what a rank computes has the device to
// itself, as it would have a device of its own.
#pragma once

#include <memory>
#include <mutex>

#include "worker/backend/stream.h"
#include "worker/engine/compute.h"

namespace takt::bench {

// All ranks share one. Thread-safe.
struct Turns {
  std::mutex mutex;                // held while an instruction is run, or given to its stream
  backend::Event* last = nullptr;  // the end of the newest turn on a stream; null: there is none
};

// Binds what `inner` binds. Of the instructions of compute lanes, one runs at a time among all that
// share `turns`. No Compute that shares them may end before all of their engines are done.
std::unique_ptr<engine::Compute> TakeTurns(engine::Compute& inner, const program::Program& program,
                                           Turns& turns);

}  // namespace takt::bench
