// SPDX-License-Identifier: Apache-2.0
// Lets ranks that compute on one device take turns, so that each instruction has the device for
// itself, as on a device of its own.
#pragma once

#include <memory>
#include <mutex>

#include "worker/backend/stream.h"
#include "worker/engine/compute.h"

namespace takt::bench {

// All ranks share one object. Thread-safe.
struct Turns {
  std::mutex mutex;                // held while an instruction runs, or is given to its stream
  backend::Event* last = nullptr;  // the end of the newest turn on a stream; null: there is none
};

// Binds what `inner` binds. Among all objects that share `turns`, one instruction of a compute lane
// runs at a time. All engines must end before any Compute that shares `turns` does.
std::unique_ptr<engine::Compute> TakeTurns(engine::Compute& inner, const program::Program& program,
                                           Turns& turns);

}  // namespace takt::bench
