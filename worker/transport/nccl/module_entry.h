// SPDX-License-Identifier: Apache-2.0
// The interface that takt_nccl.so exports; worker/backend/cuda/module_entry.h says what may cross.
#pragma once

#include "absl/status/statusor.h"
#include "worker/transport/nccl/api.h"

namespace takt::transport::nccl {

struct ModuleEntry {
  const char* version;  // kTaktVersion of its build
  // Returns the version of the library that was found at run time: 22809 is 2.28.9.
  absl::StatusOr<int> (*library_version)();
  const Api* api;
};

// The function of the module that returns its entry, never null.
inline constexpr char kModuleEntryName[] = "TaktNcclPlugin";

}  // namespace takt::transport::nccl
