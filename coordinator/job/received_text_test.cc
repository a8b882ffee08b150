// SPDX-License-Identifier: Apache-2.0
#include "coordinator/job/received_text.h"

#include <utility>

#include "coordinator/job/cluster_harness.h"
#include "coordinator/store/record_serde.h"
#include "gtest/gtest.h"

namespace takt::job {
namespace {

const std::string kHuge(8 << 20, 'x');

TEST(ReceivedText, EndsBetweenTwoCharacters) {
  std::string text(kMostTextBytes - 1, 'x');
  text += "\xc3\xa4";
  EXPECT_EQ(Bounded(text), std::string(kMostTextBytes - 1, 'x'));
}

TEST(ReceivedText, AnUpdateKeepsTheFirstOfManyNotesAndViolations) {
  control::JobUpdate update;
  update.failure.error = kHuge;
  update.failure.violations.assign(100, {.field = "f", .value = kHuge});
  update.resumed.notes.assign(100, "short");
  update = Bounded(std::move(update));
  EXPECT_EQ(update.failure.error.size(), kMostTextBytes);
  ASSERT_EQ(update.failure.violations.size(), kMostTexts);
  EXPECT_EQ(update.failure.violations[0].field, "f");
  EXPECT_EQ(update.failure.violations[0].value.size(), kMostTextBytes);
  EXPECT_EQ(update.resumed.notes.size(), kMostTexts);
}

TEST_F(ClusterTest, AHugeErrorOfAWorkerIsNotStored) {
  AttachWorkers(1);
  const control::JobKey key = RunJob("j", 1, 10);
  Say("w0", key, 0, control::Phase::kFailed, kHuge);
  EXPECT_LT(store::ToRecordProto(Job("j")).ByteSizeLong(), 64u << 10);
}

TEST_F(ClusterTest, AHugeErrorOfACheckpointIsNotStored) {
  AttachWorkers(1);
  const control::JobKey key = RunJob(SavingSpec("j", 1));
  TrainTo(key, 5);
  ReportPart("w0", key, 0, 5, kHuge);
  EXPECT_LT(store::ToRecordProto(Job("j")).ByteSizeLong(), 64u << 10);
}

}  // namespace
}  // namespace takt::job
