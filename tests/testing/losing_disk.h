// SPDX-License-Identifier: Apache-2.0
// An ext4 in a loop device whose power a test can cut: what was not synced is lost.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace takt::testing {

// Gives the calling thread, and every process that it starts, mounts of their own.
// Errors: kUnavailable (this machine does not permit it).
absl::Status EnterOwnMounts();

// A test does this with its processes that use the disk.
struct DiskUsers {
  std::function<void()> stop = [] {};  // they stand still
  std::function<void()> end = [] {};   // they are gone on return
};

// One caller at a time. Its end unmounts the disk and removes the image.
class LosingDisk final {
 public:
  // Formats the file `image` and mounts it at `directory`, an empty one. The thread has mounts of
  // its own. Errors: kUnavailable (there is no mkfs.ext4, or loop devices may not be mounted).
  static absl::StatusOr<std::unique_ptr<LosingDisk>> Create(const std::string& image,
                                                            const std::string& directory,
                                                            int mebibytes);
  ~LosingDisk();
  LosingDisk(const LosingDisk&) = delete;

  // Loses what was not synced and mounts the disk again. It shuts the file system down, or, where
  // the kernel has no such call, continues with a copy of the image that it took before anything
  // else was written back. Errors: kInternal (the disk cannot be mounted again, or is still used).
  absl::Status CutPower(const DiskUsers& users);
  // Says how the last cut was made, for people; empty: there was none.
  const std::string& last_cut() const { return last_cut_; }

 private:
  LosingDisk(std::string image, std::string directory)
      : image_(std::move(image)), directory_(std::move(directory)) {}
  absl::Status Mount() const;
  // Returns false if the kernel cannot.
  bool ShutDown() const;

  const std::string image_, directory_;
  std::string last_cut_;
};

}  // namespace takt::testing
