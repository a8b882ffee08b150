// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/file_rendezvous.h"

#include <poll.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace takt::testing {

std::string FileRendezvous::Path(const std::string& key) const {
  std::string name = key;
  std::replace(name.begin(), name.end(), '/', '+');
  return absl::StrCat(directory_, "/", name);
}

absl::Status FileRendezvous::Set(const std::string& key, const std::string& value) {
  // Written aside and renamed: a reader sees all of it or nothing.
  static std::atomic<int> serial{0};
  const std::string aside = absl::StrCat(directory_, "/.", getpid(), "-", serial.fetch_add(1));
  std::ofstream(aside, std::ios::binary) << value;
  std::error_code error;
  std::filesystem::rename(aside, Path(key), error);
  return error ? absl::UnavailableError(error.message()) : absl::OkStatus();
}

absl::StatusOr<std::string> FileRendezvous::Wait(const std::string& key, absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  const int watch = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
  if (watch < 0) return absl::ResourceExhaustedError("inotify_init1");
  inotify_add_watch(watch, directory_.c_str(), IN_MOVED_TO);
  absl::StatusOr<std::string> result = absl::DeadlineExceededError(absl::StrCat("no key ", key));
  for (;;) {
    if (std::ifstream file(Path(key), std::ios::binary); file) {
      result = std::string(std::istreambuf_iterator<char>(file), {});
      break;
    }
    const absl::Duration left = deadline - absl::Now();
    if (left <= absl::ZeroDuration()) break;
    pollfd ready{.fd = watch, .events = POLLIN, .revents = 0};
    poll(&ready, 1, static_cast<int>(absl::ToInt64Milliseconds(left)) + 1);
    char drained[4096];
    while (read(watch, drained, sizeof(drained)) > 0) {
    }
  }
  close(watch);
  return result;
}

}  // namespace takt::testing
