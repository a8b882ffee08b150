// SPDX-License-Identifier: Apache-2.0
// Keeps the number of committed transactions a second time, in a small file beside the state file.
// A damaged frame of SQLite's log silently drops that transaction and all later ones. The database
// then has a lower number than this file.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/file_descriptor.h"

namespace takt::store {

// One caller at a time.
class CommitCounter final {
 public:
  explicit CommitCounter(std::string path) : path_(std::move(path)) {}

  // Returns the number that was written last; nullopt: there is no file.
  // Errors: kDataLoss (damaged, or of another cluster), kUnavailable (cannot be read).
  absl::StatusOr<std::optional<std::int64_t>> Read(std::string_view cluster_id) const;

  // Makes the file if it is missing. The number is durable when it returns OK.
  // Errors: kUnavailable (cannot be written).
  absl::Status Write(std::string_view cluster_id, std::int64_t commits);

  bool exists() const;
  const std::string& path() const { return path_; }

 private:
  absl::Status Open();

  const std::string path_;
  FileDescriptor file_;
};

}  // namespace takt::store
