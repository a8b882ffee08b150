// SPDX-License-Identifier: Apache-2.0
// Ranks that compute on one device take turns: what each of them computes has the device to itself,
// as it would have one of its own.
#pragma once

#include <memory>
#include <mutex>

#include "absl/status/statusor.h"
#include "worker/backend/stream.h"
#include "worker/engine/compute.h"

namespace takt::bench {

// Of all ranks. Thread-safe.
struct Turns {
  std::mutex mutex;                // held while an instruction is run, or given to its stream
  backend::Event* last = nullptr;  // the end of the newest turn on a stream; null: there is none
};

// Passes on what `inner` is asked, one instruction of a compute lane at a time among all that share
// `turns`. None of them ends before all of them are done.
absl::StatusOr<std::unique_ptr<engine::Compute>> TakeTurns(engine::Compute& inner,
                                                           const program::Program& program,
                                                           Turns& turns);

}  // namespace takt::bench
