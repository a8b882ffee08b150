// SPDX-License-Identifier: Apache-2.0
// Makes checkpoints visible when the coordinator says so, one after the other, whether or not a
// rank of the job is held.
#pragma once

#include <deque>
#include <functional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "common/control/attachment.h"
#include "worker/checkpoint/file_system.h"

namespace takt::session {

// Blocks for the disk. root: where directories of jobs lie; they may not lead out of it.
// Also removes what the same generation left of earlier steps: they are settled by then.
absl::Status CommitCheckpoint(checkpoint::FileSystem& files, const std::string& root,
                              const control::CommitCheckpoint& request);

// Thread-safe.
class Committer {
 public:
  // commit: CommitCheckpoint, or a test's.  answer: called on the committer's thread.
  Committer(std::function<absl::Status(const control::CommitCheckpoint&)> commit,
            std::function<void(const control::CheckpointCommitted&)> answer);
  // Ends what was added before.
  ~Committer();

  // Never blocks.
  void Add(control::CommitCheckpoint request);

 private:
  void Main();
  bool ToldLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return ended_ || !requests_.empty();
  }

  const std::function<absl::Status(const control::CommitCheckpoint&)> commit_;
  const std::function<void(const control::CheckpointCommitted&)> answer_;
  absl::Mutex mutex_;
  std::deque<control::CommitCheckpoint> requests_ ABSL_GUARDED_BY(mutex_);
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses everything above
};

}  // namespace takt::session
