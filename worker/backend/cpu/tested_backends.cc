// SPDX-License-Identifier: Apache-2.0
// Runs the op tests on every CPU instruction set that this machine has.
#include "worker/backend/cpu/op_testing.h"

namespace takt::backend::testing {

std::vector<std::string> TestedBackends() { return CpuInstructionSets(); }

std::unique_ptr<Backend> CreateTestedBackend(const std::string& name) {
  return CreateOrDie({.threads = 2, .instruction_set = name});
}

}  // namespace takt::backend::testing
