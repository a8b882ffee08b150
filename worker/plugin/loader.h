// SPDX-License-Identifier: Apache-2.0
// Opens the GPU modules of a worker, if they are installed.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "worker/plugin/entry.h"

namespace takt::plugin {

// The folder of this program's modules: ../lib/takt from the program's own, in a build tree as on a
// machine.
std::string ModuleDirectory();

// Checks that a driver can be opened, which is cheaper than to open takt_cuda.so and its libraries.
// Errors: kUnavailable.
absl::Status FindDriver();

// Opens takt_cuda.so or takt_nccl.so of `directory`. It stays open for the life of the process,
// since devices and threads refer to it. Errors, each a sentence for an operator: kNotFound (no
// such module), kFailedPrecondition (a library that it needs is missing; it is of another version;
// it is no module of ours). Thread-safe.
absl::StatusOr<const CudaEntry*> LoadCuda(const std::string& directory);
absl::StatusOr<const NcclEntry*> LoadNccl(const std::string& directory);

}  // namespace takt::plugin
