// SPDX-License-Identifier: Apache-2.0
// A file that grows by frames, and keeps the newest ones within a number of bytes. Nothing in it is
// worth a sync: what a crash tears off is lost.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace takt::traces {

// One caller at a time.
class FrameReader {
 public:
  FrameReader() = default;
  // Oldest first; a torn one ends its file.
  std::vector<std::string> Read();

 private:
  friend class FrameFile;
  std::ifstream old_, newest_;
};

// One caller at a time. Two files, PATH and PATH.old: when the first is half of what both may be it
// takes the place of the second.
class FrameFile {
 public:
  FrameFile(std::string path, std::int64_t max_bytes)
      : path_(std::move(path)), max_bytes_(max_bytes) {}

  // Errors: those of the file system; the frame is not there then.
  absl::Status Append(std::string_view frame);
  // What is there now, to be read at any time, whatever becomes of the file.
  FrameReader Open() const;

 private:
  std::string path_;
  std::int64_t max_bytes_;
};

}  // namespace takt::traces
