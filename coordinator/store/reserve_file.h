// SPDX-License-Identifier: Apache-2.0
// A file that holds room on the disk of the state file. It is given up when the disk is full, so
// that jobs can be deleted then.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

namespace takt::store {

// One caller at a time.
class ReserveFile final {
 public:
  // bytes: 0: none is kept.
  ReserveFile(std::string path, std::int64_t bytes) : path_(std::move(path)), bytes_(bytes) {}

  // Allocates the file unless it is there. Nothing happens if the disk has no room for it.
  void Take();
  // Returns true if there was a file, which is removed.
  bool Release();

 private:
  const std::string path_;
  const std::int64_t bytes_;
  bool taken_ = false;
};

}  // namespace takt::store
