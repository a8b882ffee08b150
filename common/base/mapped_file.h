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

  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::span<const std::byte> bytes_;
};

}  // namespace takt
