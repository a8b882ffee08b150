// SPDX-License-Identifier: Apache-2.0
// Opens the GPU modules of a worker, if they are installed.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "worker/plugin/entry.h"

namespace takt::plugin {

// Returns the folder of this program's modules: ../lib/takt from the program's own folder, in a
// build tree and on an installed machine.
std::string ModuleDirectory();

// Checks that a driver can be opened. This is cheaper than to open takt_cuda.so and its libraries.
// Errors: kUnavailable.
absl::Status FindDriver();

// Opens takt_cuda.so or takt_nccl.so of `directory`. It stays open for the life of the process,
// because devices and threads refer to it. Thread-safe.
// Errors, each a sentence for an operator: kNotFound (there is no such module), kFailedPrecondition
// (a library that it needs is missing, it has another version, or it is not a module of this
// program).
absl::StatusOr<const CudaEntry*> LoadCuda(const std::string& directory);
absl::StatusOr<const NcclEntry*> LoadNccl(const std::string& directory);

}  // namespace takt::plugin
