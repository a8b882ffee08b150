// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "worker/checkpoint/file_system.h"

namespace takt::testing {

// A file system whose calls fail when a test wants it. It counts every call, also those on its
// files. One caller at a time. `base` is borrowed and outlives it and its files.
class FaultyFileSystem final : public worker_checkpoint::FileSystem {
 public:
  explicit FaultyFileSystem(worker_checkpoint::FileSystem& base) : base_(base) {}

  // Calls `first` to `last` (1 is the next one made) fail with `error`. They are not carried out,
  // except that a failing write leaves the first half of its bytes.
  void Fail(int first, int last, absl::Status error);
  // `hook` is called once, before call `call` (1 is the next one made) is carried out, as if the
  // process were paused there while others change the directory.
  void Before(int call, std::function<void()> hook);
  // As on NFS.
  void ForbidExchange() { may_exchange_ = false; }
  int calls() const { return calls_; }

  absl::StatusOr<std::unique_ptr<worker_checkpoint::WritableFile>> Create(
      const std::string& path) override;
  absl::Status CreateDirectory(const std::string& path) override;
  absl::Status Rename(const std::string& from, const std::string& to) override;
  absl::Status Exchange(const std::string& a, const std::string& b) override;
  absl::Status Symlink(const std::string& target, const std::string& path) override;
  absl::StatusOr<std::vector<std::string>> List(const std::string& directory) override;
  absl::Status Remove(const std::string& path) override;
  absl::Status SyncDirectory(const std::string& path) override;

 private:
  class File;

  // Counts a call. Returns the error with which it must fail; OK: it ends as the base says.
  absl::Status Next();

  worker_checkpoint::FileSystem& base_;
  int calls_ = 0, first_ = 0, last_ = 0;
  absl::Status error_;
  bool may_exchange_ = true;
  int hook_at_ = 0;
  std::function<void()> hook_;
};

}  // namespace takt::testing
