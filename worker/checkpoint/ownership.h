// SPDX-License-Identifier: Apache-2.0
// Takes a directory of checkpoints for one generation of a job, and keeps all others from changing
// it.
#pragma once

#include <span>
#include <string>

#include "absl/status/status.h"
#include "common/checkpoint/owner.h"
#include "worker/checkpoint/file_system.h"

namespace takt::worker_checkpoint {

// Makes `owner` the owner of the directory. From then on CheckOwnership fails for all others. If
// owner.job_id is empty, nothing happens.
// other_jobs: the ids of jobs that have not ended, whose directories must not be taken. The
// directory of any other job is taken over. Errors: kInvalidArgument (FieldError: another job that
// has not ended owns it), kAborted (a later generation of the job owns it, or somebody else took it
// at the same time), kDataLoss (the file is damaged), others from the disk.
absl::Status TakeOwnership(FileSystem& files, const std::string& directory,
                           const checkpoint::Owner& owner,
                           std::span<const std::string> other_jobs = {});

// Call this before each change that cannot be undone.
// Errors: kAborted (another generation or job owns the directory, or a later coordinator commands
// the generation; the message names it), kDataLoss, others from the disk. A directory without an
// owner, and an empty owner.job_id, are OK: programs before this rule write no such file.
absl::Status CheckOwnership(const std::string& directory, const checkpoint::Owner& owner);

// Notes the owner's epoch, if it has one and it is not noted yet. From then on CheckOwnership fails
// for lower epochs of the same generation. Errors: as CheckOwnership.
absl::Status NoteEpoch(FileSystem& files, const std::string& directory,
                       const checkpoint::Owner& owner);

}  // namespace takt::worker_checkpoint
