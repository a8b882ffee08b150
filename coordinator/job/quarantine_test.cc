// SPDX-License-Identifier: Apache-2.0
#include "coordinator/job/quarantine.h"

#include <cmath>
#include <random>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::job {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

class QuarantineTest : public ::testing::Test {
 protected:
  void Blame(const std::string& worker, const std::string& job, int num_workers = 10) {
    quarantine_.Blame(worker, {.time = now_, .job = job, .what = "its stream ended"}, num_workers);
  }
  bool IsOut(const std::string& worker) const { return quarantine_.Of(worker, now_).quarantined; }

  absl::Time now_ = absl::FromUnixSeconds(1'000'000);
  Quarantine quarantine_;
};

TEST_F(QuarantineTest, TwoFaultsWithinAnHourFromTwoJobsQuarantineAWorker) {
  Blame("w0", "a");
  EXPECT_FALSE(IsOut("w0"));
  now_ += absl::Minutes(59);
  Blame("w0", "b");
  EXPECT_TRUE(IsOut("w0"));
  EXPECT_EQ(quarantine_.Of("w0", now_).until, now_ + absl::Minutes(10));
  EXPECT_EQ(quarantine_.Of("w0", now_).reasons,
            "1970-01-12 13:46:40 job a: its stream ended; 1970-01-12 14:45:40 job b: its stream "
            "ended");
}

TEST_F(QuarantineTest, ThreeFaultsWithinADayFromTwoJobsQuarantineAWorker) {
  Blame("w0", "a");
  now_ += absl::Hours(10);
  Blame("w0", "b");
  EXPECT_FALSE(IsOut("w0"));
  now_ += absl::Hours(10);
  Blame("w0", "b");
  EXPECT_TRUE(IsOut("w0"));
}

TEST_F(QuarantineTest, AClockThatIsSetBackBringsNoQuarantineBack) {
  Blame("w0", "a");
  Blame("w0", "b");
  EXPECT_THAT(quarantine_.Tick(now_), IsEmpty());
  now_ += absl::Minutes(10);
  EXPECT_THAT(quarantine_.Tick(now_), ElementsAre("w0"));
  now_ -= absl::Minutes(5);
  EXPECT_FALSE(IsOut("w0"));
  const Quarantine::Records stored = quarantine_.TakeChanges();
  ASSERT_TRUE(stored.contains("w0"));
  EXPECT_FALSE(Quarantine(stored).Of("w0", now_).quarantined);
}

TEST_F(QuarantineTest, AClockThatIsSetBackByDaysEndsAQuarantineForGood) {
  Blame("w0", "a");
  Blame("w0", "b");
  Quarantine restarted(quarantine_.TakeChanges());
  EXPECT_THAT(restarted.Tick(now_ - absl::Hours(48)), ElementsAre("w0"));
  EXPECT_FALSE(restarted.Of("w0", now_).quarantined);
}

TEST_F(QuarantineTest, OneJobAloneQuarantinesNobody) {
  for (int i = 0; i < 10; ++i) Blame("w0", "a");
  EXPECT_FALSE(IsOut("w0"));
  EXPECT_THAT(quarantine_.BlamedBy("a", now_), ElementsAre(Pair("w0", 10)));
  EXPECT_THAT(quarantine_.BlamedBy("b", now_), IsEmpty());
  now_ += absl::Hours(1) + absl::Seconds(1);
  EXPECT_THAT(quarantine_.BlamedBy("a", now_), IsEmpty());
}

TEST_F(QuarantineTest, AQuarantineEndsAndEachOneInARowTakesTwiceAsLong) {
  Blame("w0", "a");
  absl::Duration expected = absl::Minutes(10);
  for (int i = 0; i < 8; ++i, expected *= 2) {
    Blame("w0", i % 2 == 0 ? "b" : "a");
    ASSERT_TRUE(IsOut("w0")) << i;
    EXPECT_EQ(quarantine_.Of("w0", now_).until - now_, expected);
    EXPECT_THAT(quarantine_.Tick(now_), IsEmpty());
    now_ += expected;
    EXPECT_FALSE(IsOut("w0"));
    EXPECT_THAT(quarantine_.Tick(now_), ElementsAre("w0"));
    EXPECT_THAT(quarantine_.Tick(now_), IsEmpty());
  }
}

TEST_F(QuarantineTest, NoQuarantineIsLongerThanADay) {
  const store::WorkerRecord record{.faults = {{now_, "a", "its stream ended"}}, .quarantines = 50};
  Quarantine often(Quarantine::Records{{"w0", record}});
  often.Blame("w0", {now_, "b", "its stream ended"}, 10);
  EXPECT_TRUE(often.Of("w0", now_).quarantined);
  EXPECT_EQ(often.Of("w0", now_).until - now_, absl::Hours(24));
}

TEST_F(QuarantineTest, AfterADayWithoutAFaultEverythingIsForgotten) {
  Blame("w0", "a");
  quarantine_.TakeChanges();
  now_ += absl::Hours(24) + absl::Seconds(1);
  EXPECT_THAT(quarantine_.Tick(now_), ElementsAre("w0"));
  EXPECT_THAT(quarantine_.TakeChanges(), ElementsAre(Pair("w0", store::WorkerRecord())));
  EXPECT_EQ(quarantine_.Of("w0", now_).reasons, "");
  EXPECT_THAT(quarantine_.Tick(now_), IsEmpty());
}

TEST_F(QuarantineTest, AFaultCountsHalfAfterADay) {
  Blame("w0", "a");
  EXPECT_DOUBLE_EQ(quarantine_.Of("w0", now_).score, 1);
  EXPECT_DOUBLE_EQ(quarantine_.Of("w0", now_ + absl::Hours(12)).score, std::exp2(-0.5));
  EXPECT_DOUBLE_EQ(quarantine_.Of("w0", now_ + absl::Hours(24)).score, 0.5);
}

TEST_F(QuarantineTest, TooManyAtOnceAreOnlyNamed) {
  for (const char* worker : {"w0", "w1"}) {
    Blame(worker, "a", /*num_workers=*/39);
    Blame(worker, "b", /*num_workers=*/39);
  }
  EXPECT_TRUE(IsOut("w0"));
  EXPECT_FALSE(IsOut("w1"));
  EXPECT_THAT(quarantine_.Of("w1", now_).reasons,
              HasSubstr("not quarantined, because too many workers are already"));
  Blame("w1", "c", /*num_workers=*/40);
  EXPECT_TRUE(IsOut("w1"));
}

TEST_F(QuarantineTest, TrustForgetsAndIsStored) {
  Blame("w0", "a");
  Blame("w0", "b");
  EXPECT_THAT(quarantine_.TakeChanges(), ElementsAre(Pair("w0", ::testing::_)));
  quarantine_.Trust("w0");
  EXPECT_FALSE(IsOut("w0"));
  EXPECT_THAT(quarantine_.TakeChanges(), ElementsAre(Pair("w0", store::WorkerRecord())));
  quarantine_.Trust("nobody");
  EXPECT_THAT(quarantine_.TakeChanges(), IsEmpty());
  Blame("w0", "c");
  EXPECT_FALSE(IsOut("w0"));
}

TEST_F(QuarantineTest, WhatIsForgivenEndsTheQuarantineThatItBegan) {
  Blame("w0", "a");
  Blame("w0", "b");
  Blame("w1", "a");
  ASSERT_TRUE(IsOut("w0"));
  quarantine_.TakeChanges();
  EXPECT_THAT(quarantine_.Forgive("a", "another error", now_), IsEmpty());
  EXPECT_THAT(quarantine_.Forgive("c", "its stream ended", now_), IsEmpty());
  EXPECT_THAT(quarantine_.TakeChanges(), IsEmpty());
  EXPECT_THAT(quarantine_.Forgive("a", "its stream ended", now_), ElementsAre("w0", "w1"));
  EXPECT_FALSE(IsOut("w0"));
  EXPECT_EQ(quarantine_.Of("w0", now_).reasons, "1970-01-12 13:46:40 job b: its stream ended");
  EXPECT_THAT(
      quarantine_.TakeChanges(),
      ElementsAre(Pair("w0", store::WorkerRecord{.faults = {{now_, "b", "its stream ended"}}}),
                  Pair("w1", store::WorkerRecord())));
  Blame("w0", "c");  // it is the first quarantine again
  EXPECT_EQ(quarantine_.Of("w0", now_).until, now_ + absl::Minutes(10));
}

TEST_F(QuarantineTest, AQuarantineThatOtherFaultsBeganGoesOn) {
  Blame("w0", "a");
  Blame("w0", "b");
  now_ += absl::Minutes(5);
  Blame("w0", "typo");
  quarantine_.Forgive("typo", "its stream ended", now_);
  EXPECT_EQ(quarantine_.Of("w0", now_).until, now_ + absl::Minutes(5));
}

TEST_F(QuarantineTest, ARestartKeepsAQuarantineAndAClockThatIsSetBackEndsIt) {
  Blame("w0", "a");
  Blame("w0", "b");
  Quarantine again(quarantine_.TakeChanges());
  EXPECT_TRUE(again.Of("w0", now_).quarantined);
  EXPECT_FALSE(again.Of("w0", now_ - absl::Hours(24 * 365)).quarantined);
  EXPECT_THAT(again.Tick(now_), IsEmpty());
  EXPECT_THAT(again.Tick(now_ + absl::Minutes(10)), ElementsAre("w0"));
}

// One worker of 32 fails each job that it gets.
TEST_F(QuarantineTest, ALemonIsOutAfterTwoFaultsAndNobodyElseIs) {
  for (unsigned seed = 0; seed < 1000; ++seed) {
    std::mt19937 random(seed);
    Quarantine quarantine;
    const auto is_out = [&](unsigned worker) {
      return quarantine.Of(absl::StrCat("w", worker), now_).quarantined;
    };
    const unsigned lemon = random() % 32;
    int faults = 0;
    for (int job = 0; job < 1000 && !is_out(lemon); ++job) {
      if (random() % 32 != lemon) continue;
      quarantine.Blame(absl::StrCat("w", lemon), {now_, absl::StrCat("j", job), "error"}, 32);
      ++faults;
    }
    EXPECT_EQ(faults, 2) << "seed " << seed;
    for (unsigned worker = 0; worker < 32; ++worker)
      EXPECT_EQ(is_out(worker), worker == lemon) << "seed " << seed;
  }
}

TEST_F(QuarantineTest, APoisonedJobThatMovesOverAllWorkersQuarantinesNobody) {
  for (int round = 0; round < 3; ++round) {
    for (int worker = 0; worker < 32; ++worker) Blame(absl::StrCat("w", worker), "poisoned", 32);
  }
  for (int worker = 0; worker < 32; ++worker) EXPECT_FALSE(IsOut(absl::StrCat("w", worker)));
}

}  // namespace
}  // namespace takt::job
