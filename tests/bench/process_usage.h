// SPDX-License-Identifier: Apache-2.0
// What processes have used of memory and processors.
#pragma once

#include <sys/resource.h>
#include <sys/types.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <iterator>
#include <sstream>
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

// Returns the user and system time of a process with all its threads, in seconds.
inline double CpuSeconds(pid_t pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/stat"));
  std::string text{std::istreambuf_iterator<char>(file), {}};
  std::istringstream fields(text.substr(text.rfind(')') + 1));  // the third field comes next
  std::string skipped;
  for (int field = 3; field < 14; ++field) fields >> skipped;
  double user = 0, system = 0;
  fields >> user >> system;
  return (user + system) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

}  // namespace takt::bench
