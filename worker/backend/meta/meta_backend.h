// SPDX-License-Identifier: Apache-2.0
// A backend of shapes and bytes: it counts allocations and ops, and computes nothing. Code that
// runs on it must not look into its memory.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "common/base/memory_kind.h"
#include "worker/backend/backend.h"

namespace takt::backend {

struct MetaCounts {
  MemoryBytes bytes;            // allocated and not freed, as AllocatedBytes counts
  std::int64_t peak_bytes = 0;  // of all kinds together
  double flops = 0;             // of products of matrices and of attention, which counts causally
};

// Is called for each op. Errors: Run returns them.
using OpListener = std::function<absl::Status(const Op&)>;

// Ops must keep the rules of validate.h; their host outputs become 0. counts: borrowed; shared by
// all that use it. listener: called for valid ops; may be empty.
std::unique_ptr<BackendFactory> CreateMetaBackends(MetaCounts& counts,
                                                   OpListener listener = nullptr);

}  // namespace takt::backend
