// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace takt::bench {

// A folder that is removed with the object.
class TemporaryFolder {
 public:
  // Creates a folder in `parent`, or if that is empty, in the system's folder for temporary files.
  static absl::StatusOr<std::unique_ptr<TemporaryFolder>> Create(const std::string& parent) {
    std::string path =
        absl::StrCat(parent.empty() ? std::filesystem::temp_directory_path().string() : parent,
                     "/takt-bench-XXXXXX");
    if (mkdtemp(path.data()) == nullptr)
      return absl::ErrnoToStatus(errno, absl::StrCat("cannot make ", path));
    return std::unique_ptr<TemporaryFolder>(new TemporaryFolder(path));
  }
  ~TemporaryFolder() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  explicit TemporaryFolder(std::string path) : path_(std::move(path)) {}
  const std::string path_;
};

}  // namespace takt::bench
