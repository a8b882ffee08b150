// SPDX-License-Identifier: Apache-2.0
#include "coordinator/store/state_dir.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace takt::store {
namespace {

class StateDirTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "takt-state-XXXXXX";
    root_ = mkdtemp(pattern.data());
  }
  void TearDown() override { std::filesystem::remove_all(root_); }
  std::string root_;
};

TEST_F(StateDirTest, IsMadeForTheOwnerAlone) {
  const auto dir = StateDir::Acquire(root_ + "/a/b").value();
  struct stat info = {};
  ASSERT_EQ(stat((root_ + "/a/b").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
}

TEST_F(StateDirTest, ASecondOwnerIsRefusedNamingTheFirst) {
  auto first = std::make_unique<StateDir>(StateDir::Acquire(root_).value());
  const absl::Status status = StateDir::Acquire(root_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.ToString(), ::testing::HasSubstr(std::to_string(getpid())));
  first.reset();
  EXPECT_TRUE(StateDir::Acquire(root_).ok());
}

TEST_F(StateDirTest, PublishedAddressesReadBack) {
  const auto dir = StateDir::Acquire(root_).value();
  ASSERT_TRUE(dir.PublishAddresses({.listen = "unix:/x", .metrics = ""}).ok());
  ASSERT_TRUE(dir.PublishAddresses({.listen = "127.0.0.1:7", .metrics = "127.0.0.1:8"}).ok());
  std::ifstream in(dir.addresses_file());
  const auto object = nlohmann::json::parse(in);
  EXPECT_EQ(object["listen"], "127.0.0.1:7");
  EXPECT_EQ(object["metrics"], "127.0.0.1:8");
  EXPECT_EQ(object["pid"], getpid());
}

TEST_F(StateDirTest, APathThatIsAFileIsRefused) {
  std::ofstream(root_ + "/file") << "x";
  EXPECT_EQ(StateDir::Acquire(root_ + "/file").status().code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace takt::store
