// SPDX-License-Identifier: Apache-2.0
// Makes checkpoints visible when the coordinator says so, one after the other. It does not matter
// whether this worker holds a rank of the job.
#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "common/control/attachment.h"
#include "worker/checkpoint/file_system.h"
#include "worker/session/task_thread.h"

namespace takt::session {

// Commits the checkpoint, or, if the request has no manifest, removes what was written of it. On
// success it also removes what the same generation left of earlier steps: they are settled by then.
// root: the directory under which the directories of jobs must lie.
// Blocks: for the disk.
absl::Status CommitCheckpoint(worker_checkpoint::FileSystem& files, const std::string& root,
                              const control::CommitCheckpoint& request);

// Runs the coordinator's requests on a thread of its own. The destructor blocks until every request
// that was added has been run. Thread-safe.
class CheckpointCommitter {
 public:
  // commit: CommitCheckpoint, or a test's replacement. answer: called on the committer's thread.
  CheckpointCommitter(std::function<absl::Status(const control::CommitCheckpoint&)> commit,
                      std::function<void(const control::CheckpointCommitted&)> answer);
  // Never blocks.
  void Add(control::CommitCheckpoint request);

 private:
  void Run(const control::CommitCheckpoint& request) const;

  const std::function<absl::Status(const control::CommitCheckpoint&)> commit_;
  const std::function<void(const control::CheckpointCommitted&)> answer_;
  TaskThread thread_{"takt-committer"};  // last: it uses everything above
};

}  // namespace takt::session
