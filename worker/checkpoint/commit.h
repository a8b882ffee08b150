// SPDX-License-Identifier: Apache-2.0
// Makes a checkpoint visible, and removes what is not needed. docs/checkpoints.md has the order of
// calls, and says what a crash between any two of them leaves.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/id.h"
#include "worker/checkpoint/file_system.h"

namespace takt::worker_checkpoint {

// Makes `directory` and its parents where they are missing. They survive a power cut.
absl::Status EnsureDirectory(FileSystem& files, const std::string& directory);

// Creates a file with these contents and syncs it. After an error it may exist, incomplete.
absl::Status WriteFile(FileSystem& files, const std::string& path, std::string_view text);

// Turns the partial directory that `manifest` (the text of manifest.json) belongs to into a
// checkpoint. It checks that every file exists with its size, adds the manifest, syncs, renames,
// moves `latest`, and removes complete checkpoints beyond the `keep` newest (>= 1), but never this
// one. A directory that already has the name is moved aside. Calling it again after it succeeded
// changes nothing.
// Returns notes for people, such as what was moved, was removed or could not be removed.
// Errors: kInvalidArgument (manifest), kDataLoss (a file is missing or has another size), others
// from the disk. After an error the checkpoint may be visible, but nothing promises that it is.
absl::StatusOr<std::vector<std::string>> Commit(FileSystem& files, const std::string& directory,
                                                int keep, std::string_view manifest);

// Removes the partial directory of (step, job, generation), which failed or was given up, if it
// exists.
absl::Status RemovePartial(FileSystem& files, const std::string& directory, StepId step,
                           std::string_view job, Generation generation);

// Removes what earlier generations of `job` left unfinished, and checkpoints whose removal was
// interrupted. Returns the names of what was removed.
absl::StatusOr<std::vector<std::string>> RemoveStale(FileSystem& files,
                                                     const std::string& directory,
                                                     std::string_view job, Generation generation);

}  // namespace takt::worker_checkpoint
