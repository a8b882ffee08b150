// SPDX-License-Identifier: Apache-2.0
// Makes checkpoints visible when the coordinator says so, one after the other. It does not matter
// whether this worker holds a rank of the job.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "common/base/id.h"
#include "common/control/attachment.h"
#include "worker/checkpoint/file_system.h"
#include "worker/session/task_thread.h"

namespace takt::session {

// Says where a worker makes checkpoints visible.
struct CommitPlace {
  worker_checkpoint::FileSystem* files = nullptr;  // borrowed
  std::string root;                                // the directories of jobs lie under this one
  std::string incarnation;                         // of the worker: no other process has it
};

// Makes the checkpoint visible, or, if the request has no manifest, removes what was written of it.
// On success it also removes what the same generation left of earlier steps: they are settled by
// then. Blocks: for the disk.
absl::Status CommitCheckpoint(const CommitPlace& place, const control::CommitCheckpoint& request);

// Removes older checkpoints than the one of the request, which was committed, as
// worker_checkpoint::Retain does. Blocks: as long as it takes to read a checkpoint.
absl::Status RetainCheckpoints(const CommitPlace& place, const control::CommitCheckpoint& request);

using CommitAction = std::function<absl::Status(const control::CommitCheckpoint&)>;

// Runs the coordinator's requests on a thread of its own, and removes old checkpoints on another
// one, so that no commit waits while a checkpoint is read back. The destructor blocks until every
// request that was added has been run. Thread-safe.
class CheckpointCommitter {
 public:
  // commit and retain: CommitCheckpoint and RetainCheckpoints, or a test's replacements; retain may
  // be empty. answer: called on the committer's thread.
  CheckpointCommitter(CommitAction commit, CommitAction retain,
                      std::function<void(const control::CheckpointCommitted&)> answer);
  // Never blocks.
  void Add(control::CommitCheckpoint request);

 private:
  void Run(const control::CommitCheckpoint& request);
  void Retain(const control::CommitCheckpoint& request);

  const CommitAction commit_, retain_;
  const std::function<void(const control::CheckpointCommitted&)> answer_;
  absl::Mutex mutex_;
  // By job, the newest checkpoint that was committed and for which nothing has been removed yet.
  std::map<std::string, StepId> newest_ ABSL_GUARDED_BY(mutex_);
  TaskThread retainer_{"takt-retainer"};
  TaskThread thread_{"takt-committer"};  // last: it uses everything above
};

}  // namespace takt::session
