// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "common/base/status.h"
#include "gtest/gtest.h"

namespace takt::cli {

// A fresh directory that is removed with the object.
class TestDirectory final {
 public:
  TestDirectory() { TAKT_CHECK(mkdtemp(path_.data()) != nullptr); }
  ~TestDirectory() { std::filesystem::remove_all(path_); }
  TestDirectory(const TestDirectory&) = delete;
  TestDirectory& operator=(const TestDirectory&) = delete;

  const std::string& path() const { return path_; }
  std::string Path(const std::string& name) const { return path_ + "/" + name; }
  std::string Write(const std::string& name, const std::string& text) const {
    std::ofstream(Path(name)) << text;
    return Path(name);
  }

 private:
  std::string path_ =
      std::filesystem::path(testing::TempDir() + "/takt-cli-XXXXXX").lexically_normal();
};

}  // namespace takt::cli
