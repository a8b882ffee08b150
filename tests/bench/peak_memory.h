// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/resource.h>
#include <sys/types.h>

#include <cstdint>
#include <fstream>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace takt::bench {

// Returns the most bytes that this process has had in memory so far.
inline std::int64_t PeakRssBytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return std::int64_t{usage.ru_maxrss} * 1024;
}

// Returns the most bytes of another process that were ever resident at once.
inline absl::StatusOr<std::int64_t> PeakRssBytes(pid_t pid) {
  std::ifstream status(absl::StrCat("/proc/", pid, "/status"));
  for (std::string key; status >> key;) {
    std::int64_t kibibytes = 0;
    if (key == "VmHWM:" && status >> kibibytes) return kibibytes << 10;
  }
  return absl::UnavailableError(absl::StrCat("process ", pid, " does not tell its VmHWM"));
}

}  // namespace takt::bench
