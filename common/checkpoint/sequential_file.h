// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/file_descriptor.h"

namespace takt::checkpoint {

// Reads a regular file once from its beginning. Unlike with a mapping, a failing disk or a file
// that is truncated meanwhile causes an error and not a signal. Move-only.
class SequentialFile {
 public:
  // Errors: kNotFound, kPermissionDenied, kFailedPrecondition (not a regular file), kInternal, each
  // naming the path.
  static absl::StatusOr<SequentialFile> Open(const std::string& path);

  // Returns the size that the file had when it was opened.
  std::int64_t size() const { return size_; }

  // Fills `out` with the next bytes. Errors: kDataLoss (the file ends before), or what the disk
  // reports.
  absl::Status Read(std::span<std::byte> out);

 private:
  SequentialFile() = default;

  std::string path_;
  FileDescriptor fd_;
  std::int64_t size_ = 0;
};

}  // namespace takt::checkpoint
