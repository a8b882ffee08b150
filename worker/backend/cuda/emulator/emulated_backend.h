// SPDX-License-Identifier: Apache-2.0
// Runs the CUDA kernels as a backend on the host, for tests.
#pragma once

#include <cstdint>
#include <memory>

#include "worker/backend/backend.h"
#include "worker/backend/cuda/emulator/emulator.h"
#include "worker/backend/cuda/kernels/kernels.h"

namespace takt::backend::cuda {

// Runs every op of kernels.h. Products of matrices are kUnimplemented, except those of MuonUpdate,
// which plain loops compute. Scratch is as large as ScratchBytes says, and full of NaN before every
// op. An op that leaves block_counts other than zero is kInternal. Thread: all emulated backends of
// a process have one caller at a time. shared_bytes: the shared memory of a block; a kernel that
// takes more ends the process.
std::unique_ptr<Backend> CreateEmulatedBackend(emulator::ThreadOrder order,
                                               std::int64_t shared_bytes = kLargeTilesBytes);

}  // namespace takt::backend::cuda
