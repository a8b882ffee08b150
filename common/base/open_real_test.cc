// SPDX-License-Identifier: Apache-2.0
#include "common/base/open_real.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>

#include "common/base/mapped_file.h"
#include "gtest/gtest.h"

namespace takt {
namespace {

namespace fs = std::filesystem;

class OpenRealTest : public testing::Test {
 protected:
  OpenRealTest() {
    std::string pattern = (fs::temp_directory_path() / "takt-open-XXXXXX").string();
    base_ = fs::canonical(mkdtemp(pattern.data()));
    fs::create_directories(base_ / "root" / "sub");
    fs::create_directories(base_ / "outside");
    std::ofstream(base_ / "root" / "sub" / "file") << "inside";
    std::ofstream(base_ / "outside" / "file") << "secret";
  }
  ~OpenRealTest() override { fs::remove_all(base_); }

  // 0, or the error.
  static int Try(const fs::path& path, int flags) {
    const int fd = OpenReal(path, flags, 0600);
    if (fd < 0) return errno;
    close(fd);
    return 0;
  }

  fs::path base_;
};

TEST_F(OpenRealTest, OpensAndCreatesWhatIsRealThroughout) {
  EXPECT_EQ(Try(base_ / "root" / "sub" / "file", O_RDONLY), 0);
  EXPECT_EQ(Try(base_ / "root" / "new", O_WRONLY | O_CREAT), 0);
  EXPECT_EQ(Try(base_ / "root" / "absent", O_RDONLY), ENOENT);
}

TEST_F(OpenRealTest, RefusesAFileThatBecameALink) {
  const fs::path file = base_ / "root" / "sub" / "file";
  fs::remove(file);
  fs::create_symlink(base_ / "outside" / "file", file);
  EXPECT_EQ(Try(file, O_RDONLY), ELOOP);
  EXPECT_EQ(Try(file, O_WRONLY | O_CREAT | O_TRUNC), ELOOP);
  EXPECT_EQ(fs::file_size(base_ / "outside" / "file"), 6u);
  EXPECT_FALSE(MappedFile::OpenReal(file).ok());
  EXPECT_TRUE(MappedFile::Open(file).ok());
}

TEST_F(OpenRealTest, RefusesADirectoryThatBecameALink) {
  fs::rename(base_ / "root" / "sub", base_ / "root" / "moved");
  fs::create_directory_symlink(base_ / "outside", base_ / "root" / "sub");
  EXPECT_EQ(Try(base_ / "root" / "sub" / "file", O_RDONLY), ELOOP);
  EXPECT_EQ(Try(base_ / "root" / "sub" / "new", O_WRONLY | O_CREAT), ELOOP);
  EXPECT_EQ(Try(base_ / "root" / "sub", O_RDONLY | O_DIRECTORY), ELOOP);
  EXPECT_FALSE(fs::exists(base_ / "outside" / "new"));
}

TEST_F(OpenRealTest, RefusesLinksOfTheKernel) {
  EXPECT_EQ(Try("/proc/self/cwd", O_RDONLY | O_DIRECTORY), ELOOP);
  EXPECT_EQ(Try("/proc/self/root/etc/passwd", O_RDONLY), ELOOP);
}

}  // namespace
}  // namespace takt
