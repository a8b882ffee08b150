// SPDX-License-Identifier: Apache-2.0
// Makes a checkpoint visible, and removes what is not needed. docs/checkpoints.md has the order of
// calls, and says what a crash between any two of them leaves.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/id.h"
#include "common/checkpoint/owner.h"
#include "worker/checkpoint/file_system.h"

namespace takt::worker_checkpoint {

// Makes `directory` and its parents where they are missing. They survive a power cut.
absl::Status EnsureDirectory(FileSystem& files, const std::string& directory);

// Creates a file with these contents and syncs it. After an error it may exist, incomplete.
absl::Status WriteFile(FileSystem& files, const std::string& path, std::string_view text);

struct PublishOptions {
  std::string token;  // part of the names that only this process uses
  // Must own the directory when anything is renamed (ownership.h).
  checkpoint::Owner owner;
};

// Turns the partial directory that `manifest` (the text of manifest.json) belongs to into a
// checkpoint. It checks that every file exists with its size, renames the directory to a name of
// its own, adds the manifest, syncs, renames, and moves `latest`. A directory that already has the
// name is moved aside. Calling it again after it succeeded changes nothing, and so does calling it
// in another process, at the same time or later.
// Returns notes for people, such as what was moved.
// Errors: kInvalidArgument (manifest), kDataLoss (a file is missing or has another size), kAborted
// (another generation or job owns the directory), others from the disk. After an error the
// checkpoint may be visible, but nothing promises that it is.
absl::StatusOr<std::vector<std::string>> Publish(FileSystem& files, const std::string& directory,
                                                 std::string_view manifest,
                                                 const PublishOptions& options);

struct RetainOptions {
  StepId step;     // the checkpoint that was published
  int keep = 1;    // so many complete checkpoints stay, with this one; >= 1
  StepId resumed;  // the running generation resumed from this one, so it stays too; 0: none
  checkpoint::Owner owner;  // must own the directory when anything is removed (ownership.h)
};

// Removes the oldest complete checkpoints beyond `keep`. Before it removes any, it reads all files
// of the published one back and compares their hashes. Newer checkpoints belong to a run that was
// given up for an older step: they are neither counted nor removed.
// Returns the names of what was removed.
// Blocks: for the disk, as long as it takes to read a checkpoint.
// Errors: kDataLoss (the published checkpoint is damaged), kAborted (another generation or job owns
// the directory), others from the disk. Whatever the error is, the published checkpoint and
// `keep` - 1 others are there.
absl::StatusOr<std::vector<std::string>> Retain(FileSystem& files, const std::string& directory,
                                                const RetainOptions& options);

// Removes the partial directory of (step, job, generation), which failed or was given up, if it
// exists.
absl::Status RemovePartial(FileSystem& files, const std::string& directory, StepId step,
                           std::string_view job, Generation generation);

// Removes the same directory, unless a process has claimed it to make it visible. Ranks may call it
// while such a process is asked.
absl::Status RemoveUnclaimed(FileSystem& files, const std::string& directory, StepId step,
                             std::string_view job, Generation generation);

// Removes what earlier generations of `job` left unfinished, checkpoints whose removal was
// interrupted, and temporary files of `latest` and of the owner. Returns the names of what was
// removed.
absl::StatusOr<std::vector<std::string>> RemoveStale(FileSystem& files,
                                                     const std::string& directory,
                                                     std::string_view job, Generation generation);

}  // namespace takt::worker_checkpoint
