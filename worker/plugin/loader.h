// SPDX-License-Identifier: Apache-2.0
// Opens the modules that a worker may have beside it.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "worker/plugin/entry.h"

namespace takt::plugin {

// Where the modules of this program are: ../lib/takt from its folder, in a build tree as on a
// machine.
std::string ModuleDirectory();

// Whether a driver can be opened at all: cheaper to ask than takt_cuda.so, which opens the
// libraries of CUDA. Errors: kUnavailable.
absl::Status FindDriver();

// takt_cuda.so and takt_nccl.so of `directory`. They stay open for the life of the process: devices
// and threads refer to them. Errors, each a sentence for an operator: kNotFound (no such module),
// kFailedPrecondition (a library that it needs is missing, as the system's loader says it; it is of
// another version; it is no module of ours). Thread-safe.
absl::StatusOr<const CudaEntry*> LoadCuda(const std::string& directory);
absl::StatusOr<const NcclEntry*> LoadNccl(const std::string& directory);

}  // namespace takt::plugin
