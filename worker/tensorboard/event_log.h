// SPDX-License-Identifier: Apache-2.0
// One TensorBoard event file that is written beside training.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/id.h"
#include "worker/tensorboard/event_serde.h"

namespace takt::tensorboard {

struct EventLogOptions {
  std::string directory;  // must exist
  std::string name;       // the end of the file's name
  // Points of this step and of later ones in older files of the directory become void.
  StepId first_step{1};
  absl::Time now;
  std::size_t max_queued_bytes = 1 << 20;
};

// Thread-safe. It writes on a thread of its own. When the disk is slow or broken, points are lost,
// but training does not wait.
class EventLog final {
 public:
  // Makes events.out.tfevents.SECONDS.NAME, where SECONDS is larger than that of every file there,
  // because readers take files in the order of their names. Errors: those of the file system.
  static absl::StatusOr<std::unique_ptr<EventLog>> Create(EventLogOptions options);
  // Writes what is queued.
  ~EventLog();

  // Never blocks. Drops the points if there is no room.
  void Add(StepId step, absl::Time time, std::span<const Scalar> scalars);

  const std::string& path() const { return path_; }

 private:
  EventLog(EventLogOptions options, std::string path, int fd);
  void Main();
  // Writes whole records or nothing, because readers find no record after half a record.
  void Write(const std::string& records);
  bool HasWorkLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return ended_ || !queued_.empty();
  }

  const EventLogOptions options_;
  const std::string path_;
  const int fd_;
  std::int64_t size_ = 0;  // of the file; only the writing thread uses it
  bool failing_ = false;   // whether the last write failed; only the writing thread uses it

  absl::Mutex mutex_;
  std::string queued_ ABSL_GUARDED_BY(mutex_);
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses everything above
};

}  // namespace takt::tensorboard
