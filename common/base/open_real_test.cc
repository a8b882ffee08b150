// SPDX-License-Identifier: Apache-2.0
#include "common/base/open_real.h"

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <thread>

#include "common/base/mapped_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt {
namespace {

namespace fs = std::filesystem;
using testing::AnyOf;

// Makes the rest of this thread's life that of a process in a container that does not know openat2.
void ForgetOpenat2() {
  std::array<sock_filter, 4> program = {
      sock_filter BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat2, 0, 1),
      sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const sock_fprog filter = {.len = program.size(), .filter = program.data()};
  ASSERT_EQ(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
  ASSERT_EQ(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter), 0);
  ASSERT_EQ(syscall(SYS_openat2, AT_FDCWD, "/", nullptr, 0), -1);
  ASSERT_EQ(errno, EPERM);
}

// Each test runs with openat2 and without it.
class OpenRealTest : public testing::TestWithParam<bool> {
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

  // Returns 0, or errno of the failure.
  static int Try(const fs::path& path, int flags) {
    int error = 0;
    std::thread([&] {
      if (!GetParam()) ForgetOpenat2();
      const int fd = OpenReal(path, flags, 0600);
      if (fd < 0) error = errno;
      if (fd >= 0) close(fd);
    }).join();
    return error;
  }

  fs::path base_;
};

TEST_P(OpenRealTest, OpensAndCreatesWhatIsRealThroughout) {
  EXPECT_EQ(Try(base_ / "root" / "sub" / "file", O_RDONLY), 0);
  EXPECT_EQ(Try(base_ / "root" / "new", O_WRONLY | O_CREAT), 0);
  EXPECT_EQ(Try(base_ / "root" / "absent", O_RDONLY), ENOENT);
}

TEST_P(OpenRealTest, RefusesAFileThatBecameALink) {
  const fs::path file = base_ / "root" / "sub" / "file";
  fs::remove(file);
  fs::create_symlink(base_ / "outside" / "file", file);
  EXPECT_EQ(Try(file, O_RDONLY), ELOOP);
  EXPECT_EQ(Try(file, O_WRONLY | O_CREAT | O_TRUNC), ELOOP);
  EXPECT_EQ(fs::file_size(base_ / "outside" / "file"), 6u);
  EXPECT_FALSE(MappedFile::OpenReal(file).ok());
  EXPECT_TRUE(MappedFile::Open(file).ok());
}

TEST_P(OpenRealTest, RefusesADirectoryThatBecameALink) {
  fs::rename(base_ / "root" / "sub", base_ / "root" / "moved");
  fs::create_directory_symlink(base_ / "outside", base_ / "root" / "sub");
  EXPECT_THAT(Try(base_ / "root" / "sub" / "file", O_RDONLY), AnyOf(ELOOP, ENOTDIR));
  EXPECT_THAT(Try(base_ / "root" / "sub" / "new", O_WRONLY | O_CREAT), AnyOf(ELOOP, ENOTDIR));
  EXPECT_THAT(Try(base_ / "root" / "sub", O_RDONLY | O_DIRECTORY), AnyOf(ELOOP, ENOTDIR));
  EXPECT_FALSE(fs::exists(base_ / "outside" / "new"));
}

TEST_P(OpenRealTest, RefusesLinksOfTheKernel) {
  EXPECT_THAT(Try("/proc/self/cwd", O_RDONLY | O_DIRECTORY), AnyOf(ELOOP, ENOTDIR));
  EXPECT_THAT(Try("/proc/self/root/etc/passwd", O_RDONLY), AnyOf(ELOOP, ENOTDIR));
}

TEST_P(OpenRealTest, TakesRelativePathsToo) {
  const int before = open(".", O_PATH | O_DIRECTORY | O_CLOEXEC);
  fs::current_path(base_ / "root");
  EXPECT_EQ(Try("sub/file", O_RDONLY), 0);
  EXPECT_EQ(Try("sub//", O_RDONLY | O_DIRECTORY), 0);
  EXPECT_EQ(Try(".", O_RDONLY | O_DIRECTORY), 0);
  EXPECT_EQ(Try("none/file", O_RDONLY), ENOENT);
  ASSERT_EQ(fchdir(before), 0);
  close(before);
}

INSTANTIATE_TEST_SUITE_P(Kernels, OpenRealTest, testing::Bool(),
                         [](const auto& info) { return info.param ? "Openat2" : "Walk"; });

}  // namespace
}  // namespace takt
