// SPDX-License-Identifier: Apache-2.0
// What saving a checkpoint does to a disk, as an object, so that tests can let each call fail.
// Reading is not here: common/checkpoint reads real files.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace takt::checkpoint {

// A file being written. One caller at a time. Destroyed without Close, it is closed and whatever
// the disk then says is lost: only for a file that is given up.
class WritableFile {
 public:
  virtual ~WritableFile() = default;
  // All of it or an error.
  virtual absl::Status Append(std::span<const std::byte> bytes) = 0;
  // Blocks until what was appended survives a power cut.
  virtual absl::Status Sync() = 0;
  virtual absl::Status Close() = 0;
};

// Thread-safe. Errors name the path: kResourceExhausted (ENOSPC, EDQUOT), kNotFound,
// kAlreadyExists, kPermissionDenied, ..., and whatever else the disk says.
class FileSystem {
 public:
  virtual ~FileSystem() = default;
  // An empty file, whatever was there before. No part of `path` is a symbolic link, here and in
  // List, which is an error: none leads out of the checkpoint root.
  virtual absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& path) = 0;
  // OK if it is there already; its parent must be.
  virtual absl::Status CreateDirectory(const std::string& path) = 0;
  // Replaces a file or a link at `to`, never a directory that is not empty.
  virtual absl::Status Rename(const std::string& from, const std::string& to) = 0;
  // Two directories get each other's name in one step. kUnimplemented: not on this file system
  // (NFS).
  virtual absl::Status Exchange(const std::string& a, const std::string& b) = 0;
  virtual absl::Status Symlink(const std::string& target, const std::string& path) = 0;
  virtual absl::StatusOr<std::vector<std::string>> List(const std::string& directory) = 0;
  // A file, a link or an empty directory. kNotFound: nothing there.
  virtual absl::Status Remove(const std::string& path) = 0;
  // Blocks until names created, renamed and removed in it survive a power cut.
  virtual absl::Status SyncDirectory(const std::string& path) = 0;
};

std::unique_ptr<FileSystem> CreatePosixFileSystem();

}  // namespace takt::checkpoint
