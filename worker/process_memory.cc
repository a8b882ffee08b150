// SPDX-License-Identifier: Apache-2.0
#include "worker/process_memory.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>

namespace takt::worker {
namespace {

namespace fs = std::filesystem;

// Returns the number with which a file begins, or nullopt if there is none ("max").
std::optional<std::int64_t> ReadNumber(const fs::path& path) {
  std::int64_t number = 0;
  if (std::ifstream file(path); file >> number) return number;
  return std::nullopt;
}

std::int64_t ResidentBytes() {
  std::int64_t size = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> size >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

// Returns the least limit of a group and of those above it. `file` is the name of the limit in
// each.
std::optional<std::int64_t> LeastLimit(const fs::path& mount, fs::path group, const char* file) {
  std::optional<std::int64_t> least;
  for (group = group.relative_path();; group = group.parent_path()) {
    if (const auto limit = ReadNumber(mount / group / file))
      least = std::min(least.value_or(*limit), *limit);
    if (group.empty()) return least;
  }
}

}  // namespace

std::int64_t MemoryLimitBytes(const std::string& root) {
  std::int64_t limit = static_cast<std::int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  const fs::path groups = fs::path(root) / "sys/fs/cgroup";
  std::ifstream file(fs::path(root) / "proc/self/cgroup");
  // "0::/group" of the unified hierarchy, "4:memory:/group" of the old one.
  for (std::string line; std::getline(file, line);) {
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string group = line.substr(second + 1);
    std::optional<std::int64_t> least;
    if (controllers.empty()) least = LeastLimit(groups, group, "memory.max");
    if (controllers == "memory")
      least = LeastLimit(groups / "memory", group, "memory.limit_in_bytes");
    limit = std::min(limit, least.value_or(limit));
  }
  return limit;
}

void RecordMemory(const MemoryBytes& allocated, metrics::Registry& registry) {
  MemoryBytes bytes = allocated;
  bytes[MemoryKind::kProcess] = std::max<std::int64_t>(0, ResidentBytes() - allocated.total());
  for (std::size_t i = 0; i < kNumMemoryKinds; ++i) {
    const auto kind = static_cast<MemoryKind>(i);
    registry.Gauge(metrics::kMemory, {std::string(Name(kind))})
        .Set(static_cast<double>(bytes[kind]));
  }
  registry.Gauge(metrics::kMemoryLimit).Set(static_cast<double>(MemoryLimitBytes()));
}

}  // namespace takt::worker
