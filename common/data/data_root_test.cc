// SPDX-License-Identifier: Apache-2.0
#include "common/data/data_root.h"

#include <filesystem>
#include <fstream>

#include "common/base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::data {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class DataRoot : public testing::Test {
 protected:
  DataRoot() {
    std::string pattern = (fs::temp_directory_path() / "takt-data-root-XXXXXX").string();
    base_ = fs::canonical(mkdtemp(pattern.data()));
    root_ = base_ / "root";
    fs::create_directories(root_ / "sub");
    Touch(root_ / "a.bin");
    Touch(root_ / "sub" / "b.bin");
    Touch(base_ / "secret.bin");
  }
  ~DataRoot() override { fs::remove_all(base_); }

  static void Touch(const fs::path& path) { std::ofstream(path) << "x"; }

  absl::StatusOr<std::string> Resolve(const std::string& path) const {
    return ResolveUnderRoot("data.train.path", root_.string(), path);
  }
  void ExpectRefused(const std::string& path, const std::string& rule,
                     absl::StatusCode code = absl::StatusCode::kInvalidArgument) const {
    const absl::Status status = Resolve(path).status();
    ASSERT_EQ(status.code(), code) << path;
    const std::vector<FieldError> errors = FieldErrorsOf(status);
    ASSERT_EQ(errors.size(), 1U);
    EXPECT_EQ(errors[0].field, "data.train.path");
    EXPECT_EQ(errors[0].value, path);
    EXPECT_THAT(errors[0].rule, HasSubstr(rule));
    EXPECT_NE(errors[0].fix, "");
  }

  fs::path base_, root_;
};

TEST_F(DataRoot, FindsRelativeAndAbsolutePathsUnderIt) {
  EXPECT_EQ(Resolve("a.bin").value(), (root_ / "a.bin").string());
  EXPECT_EQ(Resolve("sub/../a.bin").value(), (root_ / "a.bin").string());
  EXPECT_EQ(Resolve((root_ / "sub" / "b.bin").string()).value(),
            (root_ / "sub" / "b.bin").string());
}

TEST_F(DataRoot, FollowsLinksThatStayInside) {
  fs::create_symlink(root_ / "sub" / "b.bin", root_ / "link.bin");
  EXPECT_EQ(Resolve("link.bin").value(), (root_ / "sub" / "b.bin").string());
}

TEST_F(DataRoot, RefusesToBeLeft) {
  const std::string rule = "must lie under the worker's data root " + root_.string();
  ExpectRefused("../secret.bin", rule);
  ExpectRefused("sub/../../secret.bin", rule);
  ExpectRefused((base_ / "secret.bin").string(), rule);
  ExpectRefused((base_ / "root2").string(),
                rule);  // the root's name is a prefix of it, the root is not
  fs::create_symlink(base_ / "secret.bin", root_ / "link.bin");
  ExpectRefused("link.bin", rule);
  fs::create_directory_symlink(base_, root_ / "up");
  ExpectRefused("up/secret.bin", rule);
}

TEST_F(DataRoot, RefusesTheKernelsWaysOut) {
  const std::string rule = "must lie under the worker's data root " + root_.string();
  for (const char* way : {"/proc/self/environ", "/proc/self/root/etc/passwd", "/dev/stdin"})
    ExpectRefused(way, rule);
  fs::create_directory_symlink("/proc/self/root", root_ / "root");
  ExpectRefused("root/etc/passwd", rule);
  fs::create_directory_symlink("/proc/self/cwd", root_ / "cwd");
  ExpectRefused("cwd", rule);
  fs::create_symlink("/proc/self/environ", root_ / "environ.bin");
  ExpectRefused("environ.bin", rule);
}

TEST_F(DataRoot, DoesNotTellWhatExistsOutside) {
  const absl::Status there = Resolve("../secret.bin").status();
  const absl::Status absent = Resolve("../absent.bin").status();
  EXPECT_EQ(FieldErrorsOf(there).at(0).rule, FieldErrorsOf(absent).at(0).rule);
}

TEST_F(DataRoot, RefusesWhatIsNotThere) {
  // It may be there on other workers, so the job may be right.
  ExpectRefused("absent.bin", "must exist", absl::StatusCode::kFailedPrecondition);
  ExpectRefused("", "must not be empty");
  fs::remove_all(root_);
  ExpectRefused("a.bin", "data root must be a directory", absl::StatusCode::kFailedPrecondition);
}

TEST_F(DataRoot, OfTheWholeMachineTakesAnyAbsolutePath) {
  EXPECT_EQ(ResolveUnderRoot("data.train.path", "/", (base_ / "secret.bin").string()).value(),
            (base_ / "secret.bin").string());
}

}  // namespace
}  // namespace takt::data
