// SPDX-License-Identifier: Apache-2.0
#include "cli/local/local_state.h"

#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "cli/client/local_address.h"
#include "cli/testing/test_directory.h"
#include "common/base/status.h"
#include "gtest/gtest.h"

namespace takt::cli {
namespace {

class LocalStateTest : public testing::Test {
 protected:
  const TestDirectory directory_;
  const std::string root_ = directory_.path();
};

TEST_F(LocalStateTest, KeepsTheSocketInADirectoryOfTheUserAlone) {
  const auto state = LocalState::Open(root_ + "/a/b");
  ASSERT_TRUE(state.ok()) << state.status();
  EXPECT_EQ(state->coordinator_address(), "unix:" + root_ + "/a/b/run/coordinator.sock");
  struct stat info;
  ASSERT_EQ(stat((root_ + "/a/b/run").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
  EXPECT_TRUE(IsOfLocalCluster(state->coordinator_address()));
}

TEST_F(LocalStateTest, UsesATemporaryDirectoryWhenThePathIsTooLongForASocket) {
  const std::string deep = root_ + "/" + std::string(120, 'd');
  std::string socket_directory;
  {
    const auto state = LocalState::Open(deep);
    ASSERT_TRUE(state.ok()) << state.status();
    const std::string path = state->coordinator_address().substr(5);
    EXPECT_LE(path.size(), 107u);
    socket_directory = std::filesystem::path(path).parent_path();
    struct stat info;
    ASSERT_EQ(stat(socket_directory.c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0700u);
  }
  EXPECT_FALSE(std::filesystem::exists(socket_directory));
}

// `local up` leaves the directory to the cluster, and `local down` or the next cluster removes it.
TEST_F(LocalStateTest, ThePrivateDirectoryOfTheSocketGoesWithTheAddress) {
  const std::string deep = root_ + "/" + std::string(120, 'd');
  const auto up = [&deep] {
    auto state = LocalState::Open(deep);
    EXPECT_TRUE(state.ok()) << state.status();
    EXPECT_TRUE(state->WriteAddress().ok());
    const std::filesystem::path socket = state->coordinator_address().substr(5);
    std::ofstream(socket) << "";
    return socket.parent_path();
  };
  const std::filesystem::path first = up();
  EXPECT_TRUE(std::filesystem::exists(first));
  const std::filesystem::path second = up();
  EXPECT_FALSE(std::filesystem::exists(first));
  RemoveAddress(deep);
  EXPECT_FALSE(std::filesystem::exists(second));
}

TEST_F(LocalStateTest, NoOtherDirectoryGoesWithTheAddress) {
  std::filesystem::create_directories(root_ + "/run");
  directory_.Write("address", "unix:" + root_ + "/run/coordinator.sock\n");
  RemoveAddress(root_);
  EXPECT_TRUE(std::filesystem::exists(root_ + "/run"));
  EXPECT_FALSE(std::filesystem::exists(root_ + "/address"));
}

TEST_F(LocalStateTest, RefusesASecondClusterAndNamesTheFix) {
  const auto first = LocalState::Open(root_);
  ASSERT_TRUE(first.ok());
  const auto second = LocalState::Open(root_);
  const auto errors = FieldErrorsOf(second.status());
  ASSERT_EQ(errors.size(), 1u);
  EXPECT_EQ(errors[0].field, "--state");
  EXPECT_EQ(errors[0].rule, "no other local cluster may run on it");
}

TEST_F(LocalStateTest, CanBeOpenedAgainAfterwards) {
  { ASSERT_TRUE(LocalState::Open(root_).ok()); }
  EXPECT_FALSE(LocalClusterRuns(root_));
  EXPECT_TRUE(LocalState::Open(root_).ok());
}

TEST_F(LocalStateTest, AddressIsFoundWhileTheClusterRuns) {
  {
    auto state = LocalState::Open(root_);
    ASSERT_TRUE(state.ok());
    EXPECT_EQ(ReadLocalAddress(root_), std::nullopt);
    ASSERT_TRUE(state->WriteAddress().ok());
    EXPECT_EQ(ReadLocalAddress(root_), state->coordinator_address());
  }
  EXPECT_EQ(ReadLocalAddress(root_), std::nullopt);
}

TEST_F(LocalStateTest, ThatIsAFileIsRefused) {
  const auto state = LocalState::Open("/proc/self/status");
  EXPECT_EQ(FieldErrorsOf(state.status()).at(0).field, "--state");
}

TEST(DefaultStateDirectory, FollowsXdg) {
  std::ostringstream out, err;
  Context context{.terminal = {.out = out, .err = err}};
  context.environment = [](const char* name) -> std::optional<std::string> {
    if (std::string(name) == "HOME") return "/home/u";
    return std::nullopt;
  };
  EXPECT_EQ(DefaultStateDirectory(context), "/home/u/.local/state/takt/local");
  context.environment = [](const char*) { return std::optional<std::string>("/x"); };
  EXPECT_EQ(DefaultStateDirectory(context), "/x/takt/local");
  EXPECT_EQ(KernelPlanDirectory(context), "/x/takt/kernel-plans");
}

}  // namespace
}  // namespace takt::cli
