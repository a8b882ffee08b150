// SPDX-License-Identifier: Apache-2.0
// Runs the op tests on the emulated CUDA kernels. The shuffled order of threads finds the most
// errors; kernels_test checks that all orders give the same bits.
#include "worker/backend/cpu/op_testing.h"
#include "worker/backend/cuda/emulator/emulated_backend.h"

namespace takt::backend::testing {

std::vector<std::string> TestedBackends() { return {"emulated"}; }

std::unique_ptr<Backend> CreateTestedBackend(const std::string& /*name*/) {
  return cuda::CreateEmulatedBackend(emulator::ThreadOrder::kShuffled);
}

}  // namespace takt::backend::testing
