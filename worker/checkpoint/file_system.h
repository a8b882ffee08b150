// SPDX-License-Identifier: Apache-2.0
// An interface for what saving a checkpoint does to a disk, so that tests can make each call fail.
// Reading is not part of it: common/checkpoint reads real files.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace takt::worker_checkpoint {

// A file that is being written. One caller at a time. If it is destroyed without Close, it is
// closed and errors are lost, so do this only for a file that is given up.
class WritableFile {
 public:
  virtual ~WritableFile() = default;
  // Writes all bytes, or returns an error.
  virtual absl::Status Append(std::span<const std::byte> bytes) = 0;
  // Blocks until what was appended survives a power cut.
  virtual absl::Status Sync() = 0;
  virtual absl::Status Close() = 0;
};

// Thread-safe. Errors name the path: kResourceExhausted (ENOSPC, EDQUOT), kNotFound,
// kAlreadyExists, kPermissionDenied, ..., and whatever else the disk returns.
class FileSystem {
 public:
  virtual ~FileSystem() = default;
  // Creates an empty file, or empties the file that is there. Here and in List it is an error if a
  // part of `path` is a symbolic link, so that no path leads out of the checkpoint root.
  virtual absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& path) = 0;
  // Returns OK if the directory exists already. Its parent must exist.
  virtual absl::Status CreateDirectory(const std::string& path) = 0;
  // Replaces a file or a link at `to`, but never a directory that is not empty.
  virtual absl::Status Rename(const std::string& from, const std::string& to) = 0;
  // Exchanges the names of two directories in one step. kUnimplemented: this file system cannot
  // (NFS).
  virtual absl::Status Exchange(const std::string& a, const std::string& b) = 0;
  virtual absl::Status Symlink(const std::string& target, const std::string& path) = 0;
  virtual absl::StatusOr<std::vector<std::string>> List(const std::string& directory) = 0;
  // Removes a file, a link or an empty directory. kNotFound: there is none.
  virtual absl::Status Remove(const std::string& path) = 0;
  // Blocks until the names that were created, renamed and removed in it survive a power cut.
  virtual absl::Status SyncDirectory(const std::string& path) = 0;
};

std::unique_ptr<FileSystem> CreatePosixFileSystem();

}  // namespace takt::worker_checkpoint
