// SPDX-License-Identifier: Apache-2.0
#include "coordinator/store/state_dir.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "nlohmann/json.hpp"

namespace takt::store {
namespace {

std::string ReadFirstLine(const std::string& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

absl::Status Failed(std::string_view what, const std::string& path) {
  return absl::UnavailableError(
      absl::StrCat("cannot ", std::string(what), " ", path, ": ", std::strerror(errno)));
}

}  // namespace

absl::StatusOr<StateDir> StateDir::Acquire(const std::string& path) {
  std::error_code error;
  const std::filesystem::path parent = std::filesystem::absolute(path, error).parent_path();
  std::filesystem::create_directories(parent, error);
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST)
    return Failed("create state directory", path);
  const std::string lock_file = path + "/coordinator.lock";
  const int fd = ::open(lock_file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) return Failed("open lock file", lock_file);
  if (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
    const std::string pid = ReadFirstLine(lock_file);
    ::close(fd);
    return absl::FailedPreconditionError(
        absl::StrCat("state directory ", path, " belongs to a running coordinator (process ", pid,
                     "); stop that one, or use another --state"));
  }
  const std::string pid = absl::StrCat(::getpid(), "\n");
  if (::ftruncate(fd, 0) != 0 || ::pwrite(fd, pid.data(), pid.size(), 0) < 0) {
    const absl::Status status = Failed("write lock file", lock_file);
    ::close(fd);
    return status;
  }
  return StateDir(path, fd);
}

StateDir::StateDir(StateDir&& other) noexcept
    : path_(std::move(other.path_)), lock_fd_(std::exchange(other.lock_fd_, -1)) {}

StateDir::~StateDir() {
  if (lock_fd_ >= 0) ::close(lock_fd_);
}

absl::Status StateDir::PublishAddresses(const Addresses& addresses) const {
  const nlohmann::ordered_json object = {
      {"pid", ::getpid()}, {"listen", addresses.listen}, {"metrics", addresses.metrics}};
  const std::string temporary = addresses_file() + ".new";
  std::ofstream out(temporary, std::ios::trunc);
  out << object.dump() << "\n";
  out.close();
  if (!out || ::rename(temporary.c_str(), addresses_file().c_str()) != 0)
    return Failed("write", addresses_file());
  return absl::OkStatus();
}

}  // namespace takt::store
