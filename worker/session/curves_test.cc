// SPDX-License-Identifier: Apache-2.0
#include "worker/session/curves.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/checkpoint_job.h"

namespace takt::session {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
namespace fs = std::filesystem;

class CurvesTest : public ::testing::Test {
 protected:
  CurvesTest() {
    assignment_.key = {"j", Generation(2)};
    assignment_.job.steps = 10;
    assignment_.job.tensorboard = "runs/j";
  }
  absl::StatusOr<std::unique_ptr<Curves>> Open(StepId resumed = StepId(0)) {
    return Curves::Open(assignment_, resumed, root_.path(), *files_, clock_);
  }
  // Returns the bytes of the only file.
  std::string Written() const {
    std::string text;
    for (const auto& entry : fs::directory_iterator(root_.path() + "/runs/j")) {
      std::ifstream file(entry.path(), std::ios::binary);
      text.append(std::istreambuf_iterator<char>(file), {});
    }
    return text;
  }

  takt::testing::TemporaryDirectory root_;
  const std::unique_ptr<worker_checkpoint::FileSystem> files_ =
      worker_checkpoint::CreatePosixFileSystem();
  FakeClock clock_;
  control::Assignment assignment_;
};

TEST_F(CurvesTest, AreWrittenUnderTheNamesPeopleKnow) {
  auto curves = Open();
  ASSERT_TRUE(curves.ok()) << curves.status();
  (*curves)->Add({.step = StepId(1), .step_seconds = 0.5, .loss = 2, .tokens = 100});
  control::RankStepReport validated{.step = StepId(2), .step_seconds = 0.5, .loss = 2};
  validated.validation_loss = 3;
  (*curves)->Add(validated);
  curves->reset();
  for (const char* tag : {"train/loss", "train/grad_norm", "train/learning_rate",
                          "train/tokens_per_second", "train/step_time_seconds", "validation/loss"})
    EXPECT_THAT(Written(), HasSubstr(tag));
}

TEST_F(CurvesTest, OfVeryShortStepsOnlySomeAreKeptButTheLastAndEveryValidationAre) {
  auto curves = Open();
  ASSERT_TRUE(curves.ok()) << curves.status();
  const std::size_t before = Written().size();
  for (int step = 1; step < 9; ++step)
    (*curves)->Add({.step = StepId(step), .step_seconds = 1e-6, .loss = 2});
  control::RankStepReport validated{.step = StepId(9), .step_seconds = 1e-6};
  validated.validation_loss = 3;
  (*curves)->Add(validated);
  (*curves)->Add({.step = StepId(10), .step_seconds = 1e-6});
  curves->reset();
  EXPECT_THAT(Written(), HasSubstr("validation/loss"));
  EXPECT_LT(Written().size() - before, 500u);  // two points, not ten
}

TEST_F(CurvesTest, OnlyRankZeroOfAJobThatWantsThemKeepsAny) {
  assignment_.rank = Rank(1);
  EXPECT_EQ(Open().value(), nullptr);
  assignment_.rank = Rank(0);
  assignment_.job.tensorboard = "";
  EXPECT_EQ(Open().value(), nullptr);
  EXPECT_FALSE(fs::exists(root_.path() + "/runs"));
}

TEST_F(CurvesTest, ADirectoryOutsideTheRootIsRefusedAndNotMade) {
  fs::create_directory_symlink("/tmp", root_.path() + "/link");
  for (const char* const outside : {"../elsewhere", "/tmp/takt-elsewhere", "link/takt-elsewhere"}) {
    assignment_.job.tensorboard = outside;
    const absl::Status status = Open().status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("logging.tensorboard is "));
    EXPECT_THAT(std::string(status.message()), HasSubstr("under the worker's checkpoint root"));
  }
  EXPECT_FALSE(fs::exists("/tmp/takt-elsewhere"));
}

// Only this worker has tried, so the job may be right.
TEST_F(CurvesTest, ADirectoryThatCannotBeWrittenIsThisWorkersFaultAndSaysWhy) {
  std::ofstream(root_.path() + "/runs") << "a file in the way";
  const absl::Status status = Open().status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("logging.tensorboard is runs/j: must be a directory that the worker of "
                        "rank 0 can write: "));
  EXPECT_THAT(std::string(status.message()), Not(HasSubstr("OK:")));
}

}  // namespace
}  // namespace takt::session
