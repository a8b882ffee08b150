// SPDX-License-Identifier: Apache-2.0
// Compares the versions of the driver and of the runtime. This is host logic.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace takt::backend::cuda {

// 13000 is "13.0".
std::string VersionText(int version);

// driver: the newest CUDA that it speaks, 0 if there is none; runtime: the one that this module was
// built with. A driver serves every runtime of its major version. Errors: kUnavailable (no driver),
// kFailedPrecondition (too old).
absl::Status CheckDriver(int driver, int runtime);

}  // namespace takt::backend::cuda
