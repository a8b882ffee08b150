// SPDX-License-Identifier: Apache-2.0
#include "cli/client/local_address.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace takt::cli {

namespace fs = std::filesystem;

std::string DefaultStateDirectory(const Context& context) {
  if (auto state = context.environment("XDG_STATE_HOME"); state && !state->empty()) {
    return absl::StrCat(*state, "/takt/local");
  }
  return absl::StrCat(context.environment("HOME").value_or(""), "/.local/state/takt/local");
}

std::string KernelPlanDirectory(const Context& context) {
  return fs::path(DefaultStateDirectory(context)).parent_path() / "kernel-plans";
}

std::optional<std::string> ReadLocalAddress(const std::string& directory) {
  std::ifstream file(absl::StrCat(directory, kLocalAddressName));
  std::string address;
  if (!std::getline(file, address) || !LocalClusterRuns(directory)) return std::nullopt;
  return address;
}

bool IsOfLocalCluster(const std::string& address) {
  if (!absl::StartsWith(address, "unix:")) return false;
  const fs::path run = fs::path(address.substr(5)).parent_path();
  std::error_code error;
  return run.filename() == "run" && fs::exists(run.parent_path().string() + kLocalLockName, error);
}

bool LocalClusterRuns(const std::string& directory) {
  const int fd = open(absl::StrCat(directory, kLocalLockName).c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  const bool held = flock(fd, LOCK_SH | LOCK_NB) != 0;
  close(fd);
  return held;
}

}  // namespace takt::cli
