// SPDX-License-Identifier: Apache-2.0
// Making a checkpoint visible, and tidying up. docs/checkpoints.md has the order of calls and what
// a crash between any two leaves.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/id.h"
#include "worker/checkpoint/file_system.h"

namespace takt::checkpoint {

// Makes `directory` with its parents where they are missing, durably.
absl::Status EnsureDirectory(FileSystem& files, const std::string& directory);

// Turns the partial directory that `manifest` (the text of manifest.json) belongs to into a
// checkpoint: checks that every file is there with its size, adds the manifest, syncs, renames,
// moves `latest`, removes complete checkpoints beyond the `keep` newest (>= 1), never this one. A
// directory in the way is moved aside. Calling it again after it succeeded changes nothing.
// The result: what else a person should know, such as what was moved, removed or could not be.
// Errors: kInvalidArgument (manifest), kDataLoss (a file missing or of another size), others as the
// disk says; the checkpoint may be visible then, but has not been promised.
absl::StatusOr<std::vector<std::string>> Commit(FileSystem& files, const std::string& directory,
                                                int keep, std::string_view manifest);

// Removes what failed or was given up: the partial directory of (step, job, generation), if there.
absl::Status RemovePartial(FileSystem& files, const std::string& directory, StepId step,
                           std::string_view job, Generation generation);

// Removes what earlier generations of `job` left unfinished, and checkpoints whose removal was
// interrupted. The result: names of what was removed.
absl::StatusOr<std::vector<std::string>> RemoveStale(FileSystem& files,
                                                     const std::string& directory,
                                                     std::string_view job, Generation generation);

}  // namespace takt::checkpoint
