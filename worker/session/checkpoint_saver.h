// SPDX-License-Identifier: Apache-2.0
// Saves one rank's part of checkpoints beside training. Training pauses while the state is copied
// in memory; then a thread writes the copy. One save is in progress at a time.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/control/job_key.h"
#include "common/control/reports.h"
#include "worker/checkpoint/save.h"
#include "worker/checkpoint/snapshot.h"
#include "worker/session/task_thread.h"

namespace takt::session {

struct CheckpointSaverOptions {
  control::JobKey key;
  Rank rank;
  std::string directory;  // where the checkpoints are; absolute, and it exists
  int num_layers = 0;     // of the whole model
  std::vector<worker_checkpoint::TextFile> texts;  // the text files that this rank writes
  int threads = 1;                                 // threads that make the copy
  backend::MemoryBackend* device = nullptr;        // null: `live` is in host memory; see Snapshot
  // Adds to a copy what other ranks have of it, while training pauses. Empty: nothing.
  std::function<absl::Status(StepId step, const worker_checkpoint::Snapshot& copy)> complete;
  // Once it is true, the save in progress and all later ones fail soon. Null: never.
  const std::atomic<bool>* given_up = nullptr;
  // Agent::WithdrawCheckpoint. Empty: what was written before always stays.
  std::function<bool(StepId step, const std::string& error)> withdraw;
  worker_checkpoint::FileSystem* files = nullptr;  // borrowed for the saver's life
  const Clock* clock = &Clock::Real();
};

// Thread-safe. Save and Finish are called by one caller at a time. The destructor blocks as Finish
// does.
class CheckpointSaver {
 public:
  // Allocates the memory for copies of states that have the shapes of `live`.
  // Errors: kResourceExhausted.
  static absl::StatusOr<std::unique_ptr<CheckpointSaver>> Create(
      CheckpointSaverOptions options, std::span<const worker_checkpoint::LayerState> live);
  // Copies `live` and returns. The writing thread calls `report` once the files are written or
  // could not be written.
  // Blocks: until the checkpoint before is written, while copying, and as long as `complete` does.
  void Save(StepId step, std::span<const worker_checkpoint::LayerState> live,
            std::function<void(control::CheckpointReport)> report);
  // Blocks until everything is written and reported.
  void Finish() { thread_.Finish(); }

 private:
  CheckpointSaver(CheckpointSaverOptions options, worker_checkpoint::Snapshot snapshot);
  // Writes the snapshot and adds the outcome to `report`.
  void Write(control::CheckpointReport& report);
  // No checkpoints are made visible while the coordinator is away. So that they do not fill the
  // disk, the one before is removed when the one of `step` begins.
  void RemovePending(StepId step);
  void LogEnd(const control::CheckpointReport& report) const;
  double SecondsSince(std::int64_t start) const {
    return static_cast<double>(options_.clock->SteadyNanos() - start) * 1e-9;
  }

  const CheckpointSaverOptions options_;
  StepId written_;  // the newest that the thread has written, or tried to; 0: none
  // The caller uses it while the thread is idle, and the thread while it writes.
  worker_checkpoint::Snapshot snapshot_;
  TaskThread thread_{"takt-saver"};  // last: it uses everything above
};

}  // namespace takt::session
