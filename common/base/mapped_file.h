// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/file_descriptor.h"

namespace takt {

// A regular file, mapped read-only into memory until the object is destroyed. Move-only.
class MappedFile {
 public:
  // Maps a file. An empty file is an empty span. Errors: kNotFound, kPermissionDenied,
  // kFailedPrecondition (not a regular file), kInternal, each naming the path.
  static absl::StatusOr<MappedFile> Open(const std::string& path);
  // Does the same, but a path with a symbolic link in it is an error (takt::OpenReal).
  static absl::StatusOr<MappedFile> OpenReal(const std::string& path);
  // Maps an open file, which errors call `path`. If it holds no descriptor, errno says why.
  static absl::StatusOr<MappedFile> Map(const FileDescriptor& file, const std::string& path);

  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::span<const std::byte> bytes_;
};

}  // namespace takt
