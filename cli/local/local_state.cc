// SPDX-License-Identifier: Apache-2.0
#include "cli/local/local_state.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "cli/client/local_address.h"
#include "common/base/status.h"

namespace takt::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kLongestSocketPath = sizeof(sockaddr_un::sun_path) - 1;

absl::Status StateError(const std::string& directory, std::string rule, std::string fix) {
  return InvalidField(
      {.field = "--state", .value = directory, .rule = std::move(rule), .fix = std::move(fix)});
}

absl::Status MakeDirectory(const std::string& path) {
  std::error_code error;
  const fs::path parent = fs::path(path).parent_path();
  if (!parent.empty()) fs::create_directories(parent, error);
  if (mkdir(path.c_str(), 0700) == 0) return absl::OkStatus();
  if (errno == EEXIST && fs::is_directory(path, error)) return absl::OkStatus();
  return StateError(path,
                    absl::StrCat("must be a directory that can be made: ", std::strerror(errno)),
                    "name a writable directory");
}

// The private directory of a socket is here if the state's path is too long for one. The names of
// all temporary directories begin with the prefix.
constexpr char kSocketPlace[] = "/tmp", kTemporaryPrefix[] = "takt-";
constexpr char kSocketName[] = "coordinator.sock";

absl::StatusOr<std::string> MakeTemporaryDirectory(const std::string& parent) {
  std::string pattern = absl::StrCat(parent, "/", kTemporaryPrefix, "XXXXXX");
  if (mkdtemp(pattern.data()) == nullptr) {  // mode 0700
    return StateError(pattern, absl::StrCat("cannot be made: ", std::strerror(errno)),
                      "give --state DIR, or set TMPDIR to a writable directory");
  }
  return pattern;
}

// Returns the lock's descriptor, or none if another process holds the lock.
absl::StatusOr<FileDescriptor> TryLock(const std::string& directory) {
  const std::string path = absl::StrCat(directory, kLocalLockName);
  FileDescriptor fd(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!fd.valid()) {
    return StateError(directory, absl::StrCat("must be writable: ", std::strerror(errno)),
                      "name a writable directory");
  }
  return flock(fd.get(), LOCK_EX | LOCK_NB) == 0 ? std::move(fd) : FileDescriptor();
}

}  // namespace

void RemoveAddress(const std::string& state_directory) {
  const std::string path = state_directory + kLocalAddressName;
  std::ifstream file(path);
  std::string address;
  std::getline(file, address);
  std::error_code error;
  const fs::path socket = std::string(absl::StripPrefix(address, "unix:"));
  if (socket.filename() != kSocketName) return;  // it is not ours
  const fs::path place = socket.parent_path();
  const bool is_temporary = place.parent_path() == kSocketPlace &&
                            absl::StartsWith(place.filename().string(), kTemporaryPrefix);
  if (is_temporary) {
    fs::remove(socket, error);
    fs::remove(place, error);  // only if it is empty
  }
  fs::remove(path, error);
}

absl::StatusOr<LocalState> LocalState::Open(const std::string& directory) {
  std::error_code error;
  const std::string absolute = fs::absolute(directory, error).lexically_normal().string();
  RETURN_IF_ERROR(MakeDirectory(absolute));
  ASSIGN_OR_RETURN(FileDescriptor lock, TryLock(absolute));
  if (!lock.valid()) {
    return StateError(directory, "no other local cluster may run on it",
                      absl::StrCat("stop that one (takt local down --state ", directory,
                                   ") or give another --state"));
  }
  LocalState state(absolute, std::move(lock));
  RETURN_IF_ERROR(state.Prepare());
  return state;
}

absl::StatusOr<LocalState> LocalState::OpenTemporary(const Context& context) {
  ASSIGN_OR_RETURN(const std::string directory,
                   MakeTemporaryDirectory(context.environment("TMPDIR").value_or("/tmp")));
  return Open(directory);
}

LocalState::LocalState(LocalState&& other) noexcept
    : directory_(std::move(other.directory_)),
      lock_(std::move(other.lock_)),
      address_(std::move(other.address_)),
      temporary_socket_directory_(std::exchange(other.temporary_socket_directory_, "")) {}

LocalState::~LocalState() {
  std::error_code error;
  if (!temporary_socket_directory_.empty()) fs::remove_all(temporary_socket_directory_, error);
}

absl::Status LocalState::Prepare() {
  for (const char* part : {"/run", "/pids", "/logs", "/coordinator"}) {
    RETURN_IF_ERROR(MakeDirectory(directory_ + part));
  }
  RemoveAddress(directory_);  // of a cluster that is gone
  std::string socket_directory = directory_ + "/run";
  const std::string socket_name = absl::StrCat("/", kSocketName);
  std::error_code error;
  fs::permissions(socket_directory, fs::perms::owner_all, error);
  if (error) {
    return StateError(directory_, "must belong to the user who runs takt", "give another --state");
  }
  if (socket_directory.size() + socket_name.size() > kLongestSocketPath) {
    ASSIGN_OR_RETURN(temporary_socket_directory_, MakeTemporaryDirectory(kSocketPlace));
    socket_directory = temporary_socket_directory_;
  }
  address_ = absl::StrCat("unix:", socket_directory, socket_name);
  return absl::OkStatus();
}

std::string LocalState::LogPath(const std::string& process) const {
  return absl::StrCat(directory_, "/logs/", process, ".log");
}

std::string LocalState::PidPath(const std::string& process) const {
  return absl::StrCat(directory_, "/pids/", process, ".pid");
}

absl::Status LocalState::WriteAddress() {
  const std::string path = directory_ + kLocalAddressName;
  const std::string fresh = path + ".new";
  std::ofstream file(fresh);
  file << address_ << '\n';
  file.close();
  if (!file || rename(fresh.c_str(), path.c_str()) != 0) {
    return StateError(directory_, absl::StrCat("must be writable: ", std::strerror(errno)),
                      "free some space");
  }
  temporary_socket_directory_.clear();
  return absl::OkStatus();
}

void LocalState::Remove() {
  std::error_code error;
  fs::remove_all(directory_, error);
}

}  // namespace takt::cli
