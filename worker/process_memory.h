// SPDX-License-Identifier: Apache-2.0
// The memory of this process for /metrics and for the plan.
#pragma once

#include <cstdint>
#include <string>

#include "common/base/memory_kind.h"
#include "common/metrics/registry.h"

namespace takt::worker {

// What this process may use: the least of its control group's limits (those above it included) and
// the machine's memory. root: "/", or a test's.
std::int64_t MemoryLimitBytes(const std::string& root = "/");

// Sets takt_memory_bytes and takt_memory_limit_bytes to what is true now. allocated: what the
// program knows by kind; the rest of what is resident is the process.
void RecordMemory(const MemoryBytes& allocated, metrics::Registry& registry);

}  // namespace takt::worker
