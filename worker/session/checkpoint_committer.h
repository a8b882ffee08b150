// SPDX-License-Identifier: Apache-2.0
// Makes checkpoints visible when the coordinator says so, one after the other. It does not matter
// whether this worker holds a rank of the job.
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

// Commits the checkpoint, or, if the request has no manifest, removes what was written of it. On
// success it also removes what the same generation left of earlier steps: they are settled by then.
// root: the directory under which the directories of jobs must lie.
// Blocks: for the disk.
absl::Status CommitCheckpoint(worker_checkpoint::FileSystem& files, const std::string& root,
                              const control::CommitCheckpoint& request);

// Runs the coordinator's requests on a thread of its own. Thread-safe.
class CheckpointCommitter {
 public:
  // commit: CommitCheckpoint, or a test's replacement. answer: called on the committer's thread.
  CheckpointCommitter(std::function<absl::Status(const control::CommitCheckpoint&)> commit,
                      std::function<void(const control::CheckpointCommitted&)> answer);
  // Blocks until every request that was added has been run.
  ~CheckpointCommitter();

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
