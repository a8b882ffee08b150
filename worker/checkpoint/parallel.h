// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>

#include "absl/status/status.h"

namespace takt::checkpoint {

// Runs task(0) to task(count - 1), begun in this order, on so many threads, the caller's among
// them. After an error none is begun; of the errors, that of the smallest index is returned.
absl::Status RunOnThreads(int threads, std::size_t count,
                          const std::function<absl::Status(std::size_t)>& task);

}  // namespace takt::checkpoint
