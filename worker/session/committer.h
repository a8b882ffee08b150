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
#include "worker/checkpoint/file_system.h"
#include "worker/session/job_update.h"

namespace takt::session {

struct CommitRequest {
  JobKey key;
  StepId step;
  std::string directory;  // as the job gives it
  int keep = 1;
  std::string manifest;  // empty: the checkpoint failed, remove what there is of it
};

struct CommitAnswer {
  JobKey key;
  StepId step;
  absl::Status status;
};

// Blocks for the disk. root: where directories of jobs lie; they may not lead out of it.
// Also removes what the same generation left of earlier steps: they are settled by then.
absl::Status CommitCheckpoint(checkpoint::FileSystem& files, const std::string& root,
                              const CommitRequest& request);

// Thread-safe.
class Committer {
 public:
  // commit: CommitCheckpoint, or a test's.  answer: called on the committer's thread.
  Committer(std::function<absl::Status(const CommitRequest&)> commit,
            std::function<void(const CommitAnswer&)> answer);
  // Ends what was added before.
  ~Committer();

  // Never blocks.
  void Add(CommitRequest request);

 private:
  void Main();
  bool ToldLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return ended_ || !requests_.empty();
  }

  const std::function<absl::Status(const CommitRequest&)> commit_;
  const std::function<void(const CommitAnswer&)> answer_;
  absl::Mutex mutex_;
  std::deque<CommitRequest> requests_ ABSL_GUARDED_BY(mutex_);
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses everything above
};

}  // namespace takt::session
