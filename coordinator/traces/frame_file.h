// SPDX-License-Identifier: Apache-2.0
// A file that grows by frames and keeps the newest ones within a number of bytes. It is never
// synced: a crash may lose its last frames.
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
  // The frames, oldest first. A torn one ends its file.
  std::vector<std::string> Read();

 private:
  friend class FrameFile;
  std::ifstream old_, newest_;
};

// There are two files, PATH and PATH.old. When the first has half of the bytes that both may have,
// it replaces the second. One caller at a time.
class FrameFile {
 public:
  FrameFile(std::string path, std::int64_t max_bytes)
      : path_(std::move(path)), max_bytes_(max_bytes) {}

  // Errors: those of the file system; the frame is not there then.
  absl::Status Append(std::string_view frame);
  // Opens the frames that are there now. They can be read later, whatever happens to the file.
  FrameReader Open() const;

 private:
  std::string path_;
  std::int64_t max_bytes_;
};

}  // namespace takt::traces
