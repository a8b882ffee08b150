// SPDX-License-Identifier: Apache-2.0
#include "worker/checkpoint/ownership.h"

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/checkpoint/layout.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/checkpoint_job.h"
#include "tests/testing/faulty_file_system.h"
#include "worker/checkpoint/commit.h"

namespace takt::worker_checkpoint {
namespace {

using checkpoint::Owner;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class OwnershipTest : public ::testing::Test {
 protected:
  static Owner Of(int generation, const std::string& job_id = "1d") {
    return {.job_id = job_id, .job = "kjv", .generation = Generation(generation)};
  }
  absl::Status Take(const Owner& owner) { return TakeOwnership(*files_, directory_.path(), owner); }
  absl::Status Check(const Owner& owner) { return CheckOwnership(directory_.path(), owner); }

  const testing::TemporaryDirectory directory_;
  const std::unique_ptr<FileSystem> files_ = CreatePosixFileSystem();
};

TEST_F(OwnershipTest, EachGenerationTakesItFromTheOneBefore) {
  EXPECT_EQ(Check(Of(1)), absl::OkStatus());  // nobody has it
  EXPECT_EQ(Take(Of(1)), absl::OkStatus());
  EXPECT_EQ(Take(Of(1)), absl::OkStatus());
  EXPECT_EQ(Check(Of(1)), absl::OkStatus());
  EXPECT_EQ(Take(Of(3)), absl::OkStatus());
  EXPECT_EQ(Check(Of(3)), absl::OkStatus());
  for (const absl::Status& stale : {Check(Of(1)), Take(Of(2))}) {
    EXPECT_TRUE(absl::IsAborted(stale)) << stale;
    EXPECT_THAT(std::string(stale.message()), HasSubstr("belongs to generation 3 of job kjv now"));
  }
}

TEST_F(OwnershipTest, AJobOfTheSameNameIsAnotherJob) {
  ASSERT_TRUE(Take(Of(5)).ok());
  EXPECT_EQ(Take(Of(1, "2e")), absl::OkStatus());
  EXPECT_THAT(std::string(Check(Of(5)).message()), HasSubstr("generation 1 of job kjv (id 2e)"));
}

TEST_F(OwnershipTest, TheDirectoryOfAJobThatHasNotEndedIsRefusedWithBothNames) {
  ASSERT_TRUE(Take(Of(5)).ok());
  Owner other = Of(1, "2e");
  other.job = "gpt";
  const std::vector<std::string> live = {"3f", "1d"};
  const absl::Status refused = TakeOwnership(*files_, directory_.path(), other, live);
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("is the directory of job kjv, which has not ended, and cannot be that of "
                        "job gpt too"));
  ASSERT_EQ(FieldErrorsOf(refused).size(), 1u);
  EXPECT_EQ(FieldErrorsOf(refused)[0].field, "checkpoint.directory");
  EXPECT_EQ(Check(Of(5)), absl::OkStatus());
  const std::vector<std::string> rest = {"3f"};
  EXPECT_EQ(TakeOwnership(*files_, directory_.path(), other, rest), absl::OkStatus());
}

TEST_F(OwnershipTest, WithoutAnIdNothingIsWrittenOrCompared) {
  EXPECT_EQ(Take(Of(1, "")), absl::OkStatus());
  EXPECT_TRUE(std::filesystem::is_empty(directory_.path()));
  ASSERT_TRUE(Take(Of(5)).ok());
  EXPECT_EQ(Check(Of(1, "")), absl::OkStatus());
}

TEST_F(OwnershipTest, ACoordinatorOfAFormerLifeIsRefusedOnceALaterOneWasThere) {
  Owner former = Of(3), later = Of(3);
  former.epoch = 7;
  later.epoch = 8;
  ASSERT_TRUE(Take(former).ok());
  for (const Owner& owner : {former, former, later})
    EXPECT_EQ(NoteEpoch(*files_, directory_.path(), owner), absl::OkStatus());
  EXPECT_EQ(Check(later), absl::OkStatus());
  for (const absl::Status& stale : {Check(former), NoteEpoch(*files_, directory_.path(), former)}) {
    EXPECT_TRUE(absl::IsAborted(stale)) << stale;
    EXPECT_THAT(std::string(stale.message()), HasSubstr("obeys a coordinator of epoch 8 now"));
  }
  // The next generation begins with whatever epoch its coordinator has.
  Owner next = Of(4);
  next.epoch = 2;
  ASSERT_TRUE(Take(next).ok());
  EXPECT_EQ(NoteEpoch(*files_, directory_.path(), next), absl::OkStatus());
  EXPECT_EQ(Check(next), absl::OkStatus());
}

TEST_F(OwnershipTest, WithoutAnEpochNothingIsNotedOrCompared) {
  ASSERT_TRUE(Take(Of(3)).ok());
  EXPECT_EQ(NoteEpoch(*files_, directory_.path(), Of(3)), absl::OkStatus());
  EXPECT_THAT(files_->List(directory_.path()).value(), ElementsAre("owner"));
  Owner later = Of(3);
  later.epoch = 8;
  ASSERT_TRUE(NoteEpoch(*files_, directory_.path(), later).ok());
  EXPECT_EQ(Check(Of(3)), absl::OkStatus()) << "a program before epochs";
}

TEST_F(OwnershipTest, ADamagedFileIsNamed) {
  std::ofstream(directory_.path() + "/" + checkpoint::kOwnerFile) << "me\n";
  for (const absl::Status& status : {Check(Of(1)), Take(Of(1))}) {
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(directory_.path() + "/owner"));
  }
}

TEST_F(OwnershipTest, WhicheverCallFailsTheOwnerIsTheOldOrTheNewOne) {
  ASSERT_TRUE(Take(Of(1)).ok());
  absl::Status taken = absl::UnknownError("");
  for (int call = 1; !taken.ok(); ++call) {
    testing::FaultyFileSystem faulty(*files_);
    faulty.Fail(call, call, absl::ResourceExhaustedError("no space"));
    const auto before = checkpoint::ReadOwner(directory_.path());
    const Owner next = Of(call + 1);
    taken = TakeOwnership(faulty, directory_.path(), next);
    const auto after = checkpoint::ReadOwner(directory_.path());
    ASSERT_TRUE(after.ok()) << after.status();
    EXPECT_TRUE(*after == next || (!taken.ok() && *after == *before)) << call;
  }
  ASSERT_TRUE(RemoveStale(*files_, directory_.path(), "kjv", Generation(99)).ok());
  EXPECT_THAT(files_->List(directory_.path()).value(), ElementsAre("owner"));
}

}  // namespace
}  // namespace takt::worker_checkpoint
