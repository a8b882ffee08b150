// SPDX-License-Identifier: Apache-2.0
#include "coordinator/job/fault_record.h"

#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "common/base/log.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::job {
namespace {

using testing::Each;
using testing::SizeIs;

control::RankStatus WithRecent(int count) {
  control::RankStatus status;
  for (int i = 0; i < count; ++i)
    status.recent.push_back({.instruction = "0F" + std::to_string(i), .step = StepId(1)});
  return status;
}

TEST(FaultRecord, KeepsTheNewestOfWhatARankTellsAndWhoItIs) {
  const control::BoundRank bound{.rank = Rank(3), .worker = "w3"};
  const absl::Time time = absl::FromUnixSeconds(7);
  control::RankStatus status = WithRecent(20);
  status.worker = "somebody else";
  const control::RankStatus kept = ToKeep(status, bound, time);
  EXPECT_EQ(kept.rank, Rank(3));
  EXPECT_EQ(kept.worker, "w3");
  EXPECT_EQ(kept.time, time);
  ASSERT_THAT(kept.recent, SizeIs(kRecentPerRank));
  EXPECT_EQ(kept.recent.front().instruction, "0F4");
  EXPECT_EQ(kept.recent.back().instruction, "0F19");
}

TEST(FaultRecord, TextThatIsTooLongIsCutBetweenCharacters) {
  control::RankStatus status;
  status.instruction = std::string(300, 'a');
  status.waiting_for = std::string(kStatusTextBytes - 1, 'a') + "\u00e9 and more";
  const control::RankStatus kept = ToKeep(status, {}, absl::Now());
  EXPECT_THAT(kept.instruction, SizeIs(kStatusTextBytes));
  EXPECT_EQ(kept.waiting_for, std::string(kStatusTextBytes - 1, 'a'));
}

TEST(FaultRecord, AJobOfManyRanksKeepsLessOfEach) {
  JobRun run;
  run.ranks.resize(1024);
  for (RankRun& rank : run.ranks) rank.status = WithRecent(16);
  const std::vector<control::RankStatus> fault = FaultOf(run);
  ASSERT_THAT(fault, SizeIs(1024));
  EXPECT_THAT(fault, Each(testing::Field(&control::RankStatus::recent, SizeIs(4))));
  EXPECT_EQ(fault[0].recent.back().instruction, "0F15");
  run.ranks.resize(2);
  EXPECT_THAT(FaultOf(run), Each(testing::Field(&control::RankStatus::recent, SizeIs(16))));
}

TEST(FaultRecord, TheLogHasThoseWhomTheOthersWaitForAndFewLines) {
  std::vector<control::RankStatus> fault(1024);
  for (std::size_t i = 0; i < fault.size(); ++i) {
    fault[i].rank = Rank(static_cast<std::int32_t>(i));
    if (i != 1000) fault[i].waiting_for = "RECV";
  }
  std::vector<std::string> lines;
  SetLogSink([&](LogLevel, std::string_view line) { lines.emplace_back(line); });
  LogFault("j", Generation(1), fault);
  SetLogSink(nullptr);
  ASSERT_THAT(lines, SizeIs(1 + kLoggedRanks));
  EXPECT_THAT(lines[0], testing::HasSubstr("ranks=1024"));
  EXPECT_THAT(lines[1], testing::HasSubstr("rank=1000 "));
}

}  // namespace
}  // namespace takt::job
