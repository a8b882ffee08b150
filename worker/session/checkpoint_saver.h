// SPDX-License-Identifier: Apache-2.0
// Saves one rank's part of checkpoints beside training: training pauses for a copy in memory, a
// thread writes the copy. One at a time.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/base/clock.h"
#include "common/control/job_key.h"
#include "common/control/reports.h"
#include "worker/checkpoint/save.h"
#include "worker/checkpoint/snapshot.h"

namespace takt::session {

struct CheckpointSaverOptions {
  control::JobKey key;
  Rank rank;
  std::string directory;                    // of the checkpoints, absolute, there
  int num_layers = 0;                       // of the model
  std::vector<checkpoint::TextFile> texts;  // that this rank writes
  int threads = 1;                          // of the copy
  backend::MemoryBackend* device =
      nullptr;  // whose memory `live` is, null: the host's; see Snapshot
  // Once true, what is being written and everything after it fails soon. Null: never.
  const std::atomic<bool>* given_up = nullptr;
  checkpoint::FileSystem* files = nullptr;  // borrowed for the saver's life
  const Clock* clock = &Clock::Real();
};

// Thread-safe; Save and Finish come from one caller.
class CheckpointSaver {
 public:
  // Takes the memory of the copy: of what has the shapes of `live`.  Errors: kResourceExhausted.
  static absl::StatusOr<std::unique_ptr<CheckpointSaver>> Create(
      CheckpointSaverOptions options, std::span<const checkpoint::LayerState> live);
  // Blocks as Finish does.
  ~CheckpointSaver();

  // Copies `live` and returns; `report` is called on the writing thread once the files are there or
  // could not be written.  Blocks: until the checkpoint before is written, and for the copy.
  void Save(StepId step, std::span<const checkpoint::LayerState> live,
            std::function<void(control::CheckpointReport)> report);
  // Blocks until everything is written and reported.
  void Finish();

 private:
  struct Job {
    control::CheckpointReport report;
    std::function<void(control::CheckpointReport)> done;
  };
  CheckpointSaver(CheckpointSaverOptions options, checkpoint::Snapshot snapshot);
  void Main();
  void Write(Job job);
  void LogEnd(const control::CheckpointReport& report) const;
  double SecondsSince(std::int64_t start) const {
    return static_cast<double>(options_.clock->SteadyNanos() - start) * 1e-9;
  }
  bool IdleLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !next_.has_value() && !writing_;
  }
  bool ToldLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return next_.has_value() || ended_;
  }

  const CheckpointSaverOptions options_;
  checkpoint::Snapshot snapshot_;  // of the caller while idle, of the thread while it writes
  absl::Mutex mutex_;
  std::optional<Job> next_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses everything above
};

}  // namespace takt::session
