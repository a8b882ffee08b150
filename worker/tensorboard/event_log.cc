// SPDX-License-Identifier: Apache-2.0
#include "worker/tensorboard/event_log.h"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/log.h"
#include "common/base/open_real.h"
#include "common/base/status.h"

namespace takt::tensorboard {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "events.out.tfevents.";

// Returns a number above those of all files in the directory, because the clock of another host may
// have been ahead.
std::int64_t NextSeconds(const std::string& directory, absl::Time now) {
  std::int64_t seconds = absl::ToUnixSeconds(now);
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory, error)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(kPrefix)) continue;
    const std::string digits =
        name.substr(kPrefix.size(), name.find('.', kPrefix.size()) - kPrefix.size());
    std::int64_t other = 0;
    if (absl::SimpleAtoi(digits, &other)) seconds = std::max(seconds, other + 1);
  }
  return seconds;
}

}  // namespace

absl::StatusOr<std::unique_ptr<EventLog>> EventLog::Create(EventLogOptions options) {
  const std::string path =
      absl::StrCat(options.directory, "/",
                   absl::StrFormat("%s%010d.%s", std::string(kPrefix),
                                   NextSeconds(options.directory, options.now), options.name));
  const int fd = OpenReal(path, O_CREAT | O_EXCL | O_WRONLY | O_APPEND, 0644);
  if (fd < 0) return absl::ErrnoToStatus(errno, path);
  const absl::Time now = options.now;
  const StepId first_step = options.first_step;
  std::unique_ptr<EventLog> log(new EventLog(std::move(options), path, fd));
  absl::MutexLock lock(&log->mutex_);
  log->queued_ = VersionRecord(now) + StartRecord(first_step, now);
  return log;
}

EventLog::EventLog(EventLogOptions options, std::string path, int fd)
    : options_(std::move(options)), path_(std::move(path)), fd_(fd), thread_([this] { Main(); }) {}

EventLog::~EventLog() {
  {
    absl::MutexLock lock(&mutex_);
    ended_ = true;
  }
  thread_.join();
  close(fd_);
}

void EventLog::Add(StepId step, absl::Time time, std::span<const Scalar> scalars) {
  const std::string record = ScalarsRecord(step, time, scalars);
  absl::MutexLock lock(&mutex_);
  if (queued_.size() + record.size() <= options_.max_queued_bytes) queued_ += record;
}

void EventLog::Main() {
  pthread_setname_np(pthread_self(), "takt-curves");
  for (bool ended = false; !ended;) {
    std::string records;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(this, &EventLog::HasWorkLocked));
      records.swap(queued_);
      ended = ended_;
    }
    Write(records);
  }
}

void EventLog::Write(const std::string& records) {
  std::string_view left = records;
  while (!left.empty()) {
    const ssize_t written = write(fd_, left.data(), left.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      const std::string why = absl::ErrnoToStatus(errno, path_).ToString();
      if (!std::exchange(failing_, true))
        Log(LogLevel::kWarning, "points of the TensorBoard curves are lost", {{"error", why}});
      if (ftruncate(fd_, size_) != 0)
        Log(LogLevel::kWarning, "the TensorBoard file ends in half a record", {{"file", path_}});
      return;
    }
    left.remove_prefix(static_cast<std::size_t>(written));
  }
  size_ += static_cast<std::int64_t>(records.size());
  failing_ = false;
}

}  // namespace takt::tensorboard
