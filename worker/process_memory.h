// SPDX-License-Identifier: Apache-2.0
// Reads the memory of this process for /metrics and for the plan.
#pragma once

#include <cstdint>
#include <string>

#include "common/base/memory_kind.h"
#include "common/metrics/registry.h"

namespace takt::worker {

// Returns the memory that this process may use: the smallest of the limits of its control group, of
// the groups above it, and of the machine's memory. root: "/", or a directory of a test.
std::int64_t MemoryLimitBytes(const std::string& root = "/");

// Sets takt_memory_bytes and takt_memory_limit_bytes to the current values. allocated: the memory
// that the program counts by kind; the rest of the resident memory is counted as the process.
void RecordMemory(const MemoryBytes& allocated, metrics::Registry& registry);

}  // namespace takt::worker
