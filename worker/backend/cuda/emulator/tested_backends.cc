// SPDX-License-Identifier: Apache-2.0
// The CUDA kernels, emulated. The order of threads that lines up with nothing is the hardest; that
// all orders give the same bits is kernels_test's.
#include "worker/backend/cpu/op_testing.h"
#include "worker/backend/cuda/emulator/emulated_backend.h"

namespace takt::backend::testing {

std::vector<std::string> TestedBackends() { return {"emulated"}; }

std::unique_ptr<Backend> CreateTestedBackend(const std::string& /*name*/) {
  return cuda::CreateEmulatedBackend(emulator::ThreadOrder::kShuffled);
}

}  // namespace takt::backend::testing
