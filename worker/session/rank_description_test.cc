// SPDX-License-Identifier: Apache-2.0
#include "worker/session/rank_description.h"

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "common/checkpoint/layout.h"
#include "common/checkpoint/owner.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/checkpoint_job.h"

namespace takt::session {
namespace {

namespace fs = std::filesystem;

class RankDescriptionTest : public ::testing::Test {
 protected:
  // Saves a checkpoint of this generation under ROOT/runs, and makes it visible.
  void Save(int step, int generation) {
    fs::create_directories(root_.path() + "/runs");
    job_.generation = Generation(generation);
    ASSERT_EQ(job_.Save(*files_, root_.path() + "/runs", StepId(step), /*keep=*/9),
              absl::OkStatus());
  }
  control::RankDescription Describe(int generation, const std::string& directory = "runs") {
    control::Assignment assignment{.key = {name_, Generation(generation)}};
    assignment.job.name = name_;
    assignment.job.checkpoint = config::Checkpoint{.directory = directory};
    assignment.program.schedule = "1f1b";
    control::RankDescription description{.key = assignment.key};
    DescribeJob(SharedPartOf(assignment), root_.path(), description);
    return description;
  }
  takt::testing::CheckpointJob job_;
  const takt::testing::TemporaryDirectory root_;
  const std::unique_ptr<worker_checkpoint::FileSystem> files_ =
      worker_checkpoint::CreatePosixFileSystem();
  const std::string name_ = "small-gpt";  // of CheckpointJob
};

TEST_F(RankDescriptionTest, NamesTheNewestStepOfItsGeneration) {
  Save(10, 2);
  Save(20, 3);
  Save(30, 2);  // of a run that was given up
  const control::RankDescription description = Describe(3);
  EXPECT_EQ(description.saved, StepId(20));
  EXPECT_EQ(description.highest_generation, Generation(3));
  EXPECT_EQ(description.schedule, "1f1b");
  EXPECT_EQ(description.directory_error, "");
}

TEST_F(RankDescriptionTest, NamesTheHighestGenerationThatLeftAnythingBehind) {
  Save(10, 2);
  fs::create_directories(root_.path() + "/runs/" +
                         checkpoint::PartialDirectoryName(StepId(40), name_, Generation(7)));
  EXPECT_EQ(Describe(2).highest_generation, Generation(7));
  std::ofstream(root_.path() + "/runs/owner")
      << checkpoint::FormatOwner({.job_id = "1d", .job = name_, .generation = Generation(9)});
  EXPECT_EQ(Describe(2).highest_generation, Generation(9));
  EXPECT_EQ(Describe(2).saved, StepId(10));
}

TEST_F(RankDescriptionTest, SaysWhyADirectoryCannotBeRead) {
  EXPECT_NE(Describe(2, "missing").directory_error, "");
  EXPECT_NE(Describe(2, "../elsewhere").directory_error, "");
}

TEST_F(RankDescriptionTest, TheHashIsThatOfTheJobAndNotOfTheRank) {
  control::Assignment assignment{.key = {name_, Generation(1)}};
  const std::string hash = SharedPartOf(assignment).hash;
  assignment.rank = Rank(3);
  assignment.threads = 8;
  assignment.secret = "secret";
  EXPECT_EQ(SharedPartOf(assignment).hash, hash);
  EXPECT_EQ(SharedPartOf(assignment).text.find("secret"), std::string::npos);
  assignment.ranks.push_back({.rank = Rank(0), .worker = "w0"});
  EXPECT_NE(SharedPartOf(assignment).hash, hash);
}

}  // namespace
}  // namespace takt::session
