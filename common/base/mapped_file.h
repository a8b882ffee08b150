// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "absl/status/statusor.h"

namespace takt {

// A regular file mapped read-only into memory; unmapped at destruction. Move-only.
class MappedFile {
 public:
  // Errors: kNotFound, kPermissionDenied, kFailedPrecondition (not a regular file), kInternal, each
  // naming the path. An empty file is an empty span.
  static absl::StatusOr<MappedFile> Open(const std::string& path);
  // The same for a path without symbolic links (takt::OpenReal); an error: it has one.
  static absl::StatusOr<MappedFile> OpenReal(const std::string& path);

  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  // Closes `fd`; -1: what errno says.
  static absl::StatusOr<MappedFile> Map(int fd, const std::string& path);

  std::span<const std::byte> bytes_;
};

}  // namespace takt
