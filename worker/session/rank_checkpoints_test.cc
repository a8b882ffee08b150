// SPDX-License-Identifier: Apache-2.0
#include "worker/session/rank_checkpoints.h"

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/checkpoint/layout.h"
#include "common/checkpoint/manifest.h"
#include "common/config/job_file.h"
#include "common/config/job_spec_serde.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "takt/v1/job_spec.pb.h"
#include "tests/testing/checkpoint_job.h"
#include "tests/testing/map_rendezvous.h"
#include "worker/checkpoint/commit.h"
#include "worker/checkpoint/save.h"

namespace takt::session {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

constexpr char kJob[] = R"(
name: kjv
model: {family: emulated, layers: 3, forward_ms: 1, input_grad_ms: 1, weight_grad_ms: 1, activation_bytes: 64}
batch: {global: 4, microbatch: 1}
checkpoint: {directory: runs/kjv}
steps: 90
)";

// The only rank of an emulated job, whose checkpoints hold a step and nothing else.
class RankCheckpointsTest : public ::testing::Test {
 protected:
  RankCheckpointsTest() {
    assignment_.key = {"kjv", Generation(2)};
    assignment_.job = *config::ToJobSpec(*config::ParseJobFile(kJob, {}));
    assignment_.resume = "auto";
    assignment_.job_id = "1d";
  }
  std::string directory() const { return root_.path() + "/runs/kjv"; }

  void Save(std::int64_t step) {
    const checkpoint::Manifest manifest{
        .job = "kjv",
        .generation = Generation(1),
        .step = StepId(step),
        .windows = step * 4,
        .job_spec = config::FormatJobFile(config::ToProto(assignment_.job))};
    fs::create_directories(directory());
    const std::string partial =
        directory() + "/" +
        checkpoint::PartialDirectoryName(manifest.step, manifest.job, manifest.generation);
    ASSERT_TRUE(worker_checkpoint::SaveShards(*files_, {.directory = partial}).ok());
    const auto published = worker_checkpoint::Publish(
        *files_, directory(), checkpoint::FormatManifest(manifest).value(), {.token = "a"});
    ASSERT_TRUE(published.ok()) << published.status();
  }

  // Opens the directory and finds the step to go on from, as a rank does when it prepares.
  absl::StatusOr<control::Resumed> Resume() {
    takt::testing::MapRendezvous rendezvous;
    const model::Model model = *model::BuildModel(assignment_.job.model, 1);
    RankCheckpoints checkpoints({.assignment = &assignment_,
                                 .model = &model,
                                 .root = root_.path(),
                                 .meeting = {.rendezvous = &rendezvous},
                                 .files = files_.get(),
                                 .patience = absl::ZeroDuration()});
    RETURN_IF_ERROR(checkpoints.Open());
    return checkpoints.Restore(nullptr);
  }

  const takt::testing::TemporaryDirectory root_;
  const std::unique_ptr<worker_checkpoint::FileSystem> files_ =
      worker_checkpoint::CreatePosixFileSystem();
  control::Assignment assignment_;
};

TEST_F(RankCheckpointsTest, AJobWithoutACheckpointBeginsInADirectoryThatIsMade) {
  const auto resumed = Resume();
  ASSERT_TRUE(resumed.ok()) << resumed.status();
  EXPECT_EQ(resumed->step, StepId(0));
  EXPECT_TRUE(fs::exists(directory() + "/owner"));
}

// A mount may be missing on this worker alone, so the job is tried again.
TEST_F(RankCheckpointsTest, ADirectoryThatCannotBeMadeIsNamedWithItsField) {
  std::ofstream(root_.path() + "/runs") << "a file in the way";
  for (const char* const name : {"runs", "runs/kjv"}) {
    assignment_.job.checkpoint->directory = name;
    const absl::Status status = Resume().status();
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    const std::vector<FieldError> errors = FieldErrorsOf(status);
    ASSERT_EQ(errors.size(), 1u) << status;
    EXPECT_EQ(errors[0].field, "checkpoint.directory");
    EXPECT_EQ(errors[0].value, name);
    EXPECT_THAT(errors[0].rule,
                HasSubstr("must be a directory that the worker of rank 0 can write: "
                          "cannot create the directory"));
    EXPECT_EQ(errors[0].fix, "name another one under the checkpoint root");
  }
}

TEST_F(RankCheckpointsTest, ADirectoryInWhichNothingCanBeWrittenIsNamedWithItsField) {
  fs::create_directories(directory());
  fs::create_symlink("owner", directory() + "/owner");  // ELOOP
  const absl::Status status = Resume().status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_EQ(FieldErrorsOf(status).size(), 1u) << status;
}

// The storage is not mounted here: the job must not begin anew, nor in a directory of this host.
TEST_F(RankCheckpointsTest, AJobWithACheckpointDoesNotBeginAnewWhereItIsNotSeen) {
  assignment_.saved = StepId(20);
  absl::Status status = Resume().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("step 20"));
  EXPECT_TRUE(fs::is_empty(root_.path()));
  Save(10);
  status = Resume().status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("the newest is of step 10"));
  Save(20);
  const auto resumed = Resume();
  ASSERT_TRUE(resumed.ok()) << resumed.status();
  EXPECT_EQ(resumed->step, StepId(20));
}

// The name is another one, the directory is the same.
TEST_F(RankCheckpointsTest, TheDirectoryOfAnotherJobIsRefusedByItsOtherNamesToo) {
  ASSERT_TRUE(Resume().ok());
  Save(20);
  fs::create_directory(directory() + "/step-00000030.partial-kjv-1");
  fs::create_directory_symlink("runs", root_.path() + "/link");
  assignment_.key = {"kjv", Generation(7)};  // of the same name, on another coordinator's word
  assignment_.job_id = "2e";
  assignment_.other_jobs = {"1d"};
  for (const std::string& name : {std::string("link/kjv"), directory()}) {
    assignment_.job.checkpoint->directory = name;
    const absl::Status status = Resume().status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << name << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("is the directory of job kjv"));
  }
  EXPECT_TRUE(fs::exists(directory() + "/step-00000030.partial-kjv-1"));
  assignment_.other_jobs.clear();  // that job has ended
  const auto resumed = Resume();
  ASSERT_TRUE(resumed.ok()) << resumed.status();
  EXPECT_EQ(resumed->step, StepId(20));
}

}  // namespace
}  // namespace takt::session
