// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "common/program/program.h"
#include "worker/engine/compute.h"
#include "worker/engine/engine.h"
#include "worker/engine/lane.h"

namespace takt::engine {

// A program that is ready to run: its channels are open, and every instruction is bound.
struct BoundProgram {
  std::vector<std::unique_ptr<Lane>> lanes;  // these have the body
  // Indexed as those of the program.
  std::vector<std::unique_ptr<BoundInstruction>> prologue, epilogue;
};

// program, compute: borrowed for the life of what is returned. origins: of program::SplitProgram;
// empty: the program has no pairs.
// Blocks: until all neighbours have opened their channels. Everything but SEND and RECV is bound
// before, so that an error of the program shows first.
// Errors: those of MakeLanes, of Compute::Bind and of the transport.
absl::StatusOr<BoundProgram> BindProgram(const program::Program& program,
                                         std::span<const std::int32_t> origins, Compute& compute,
                                         const EngineOptions& options);

}  // namespace takt::engine
