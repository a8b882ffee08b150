// SPDX-License-Identifier: Apache-2.0
#include "worker/process_memory.h"

#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include "gmock/gmock.h"

namespace takt::worker {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
namespace fs = std::filesystem;

class MemoryLimitTest : public testing::Test {
 protected:
  MemoryLimitTest() { EXPECT_NE(mkdtemp(root_.data()), nullptr); }
  ~MemoryLimitTest() override { fs::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    const fs::path file = fs::path(root_) / path;
    fs::create_directories(file.parent_path());
    std::ofstream(file) << text << "\n";
  }

  std::string root_ = testing::TempDir() + "/takt-limit-XXXXXX";
};

TEST_F(MemoryLimitTest, WithoutALimitItIsTheMachine) {
  Write("proc/self/cgroup", "0::/system.slice/worker");
  Write("sys/fs/cgroup/system.slice/worker/memory.max", "max");
  EXPECT_EQ(MemoryLimitBytes(root_), MemoryLimitBytes(root_ + "/nothing"));
  EXPECT_GT(MemoryLimitBytes(root_), 1 << 20);
}

TEST_F(MemoryLimitTest, AGroupAboveMayHaveTheLeast) {
  Write("proc/self/cgroup", "0::/pod/container");
  Write("sys/fs/cgroup/pod/container/memory.max", "max");
  Write("sys/fs/cgroup/pod/memory.max", "1048576");
  EXPECT_EQ(MemoryLimitBytes(root_), 1048576);
  Write("sys/fs/cgroup/memory.max", "4096");
  EXPECT_EQ(MemoryLimitBytes(root_), 4096);
}

TEST_F(MemoryLimitTest, TheOldHierarchyHasLimitsToo) {
  Write("proc/self/cgroup", "7:cpu,cpuacct:/a\n4:memory:/a\n0::/");
  Write("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "8192");
  EXPECT_EQ(MemoryLimitBytes(root_), 8192);
}

TEST(RecordMemory, KindsAreWhatIsAllocatedAndTheProcessTheRest) {
  metrics::Registry registry;
  MemoryBytes allocated;
  RecordMemory(allocated, registry);
  EXPECT_THAT(registry.Text(), HasSubstr("takt_memory_bytes{kind=\"stash\"} 0\n"));
  EXPECT_THAT(registry.Text(), Not(HasSubstr("takt_memory_bytes{kind=\"process\"} 0\n")));
  EXPECT_THAT(registry.Text(), HasSubstr("takt_memory_limit_bytes "));
  allocated[MemoryKind::kStash] = 3072;
  allocated[MemoryKind::kWeights] = std::int64_t{1} << 50;  // more than any process has
  RecordMemory(allocated, registry);
  EXPECT_THAT(registry.Text(), HasSubstr("takt_memory_bytes{kind=\"stash\"} 3072\n"));
  EXPECT_THAT(registry.Text(), HasSubstr("takt_memory_bytes{kind=\"process\"} 0\n"));
}

}  // namespace
}  // namespace takt::worker
