// SPDX-License-Identifier: Apache-2.0
// The CUDA kernels behind the door of a backend, on the host: for tests.
#pragma once

#include <memory>

#include "worker/backend/backend.h"
#include "worker/backend/cuda/emulator/emulator.h"
#include "worker/backend/cuda/kernels/kernels.h"

namespace takt::backend::cuda {

struct EmulatedOptions {
  emulator::ThreadOrder order = emulator::ThreadOrder::kForward;
  AttentionProducts products = AttentionProducts::kF32;
};

// Runs every op of kernels.h; a product of matrices is kUnimplemented. Scratch is as large as
// ScratchBytes says, and full of NaN before every op.  Thread: all emulated backends of a process
// have one caller at a time.
std::unique_ptr<Backend> CreateEmulatedBackend(const EmulatedOptions& options);

}  // namespace takt::backend::cuda
