// SPDX-License-Identifier: Apache-2.0
#include "worker/session/stall_watch.h"

#include "absl/time/clock.h"
#include "gmock/gmock.h"

namespace takt::session {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using trace::Span;

constexpr std::int64_t kMilli = 1'000'000;

class StallLogTest : public ::testing::Test {
 protected:
  void Sleep(std::int64_t milliseconds) { clock_.Advance(absl::Milliseconds(milliseconds)); }

  FakeClock clock_;
  StallLog log_{clock_};
};

TEST_F(StallLogTest, WhoIsAwakeInTimeStoodStillNever) {
  for (int i = 0; i < 20; ++i) {
    Sleep(11);  // a wake-up is always a little late
    log_.Awake();
  }
  EXPECT_THAT(log_.Between(0, 1000 * kMilli), IsEmpty());
}

TEST_F(StallLogTest, AStallBeginsWhenSomebodyWasDueAndEndsWhenHeCame) {
  Sleep(10);
  log_.Awake();
  Sleep(110);
  log_.Awake();
  Sleep(10);
  log_.Awake();
  EXPECT_THAT(log_.Between(0, 1000 * kMilli), ElementsAre(Span{20 * kMilli, 120 * kMilli}));
}

TEST_F(StallLogTest, WhoAsksFirstAfterAStallHearsOfIt) {
  Sleep(110);
  EXPECT_THAT(log_.Between(0, 1000 * kMilli), ElementsAre(Span{10 * kMilli, 110 * kMilli}));
  Sleep(1);
  log_.Awake();
  EXPECT_THAT(log_.Between(0, 1000 * kMilli), ElementsAre(Span{10 * kMilli, 110 * kMilli}));
}

TEST_F(StallLogTest, GivesThoseThatOverlapTheTimeAskedFor) {
  for (int i = 0; i < 3; ++i) {
    Sleep(100);
    log_.Awake();
  }
  EXPECT_THAT(log_.Between(200 * kMilli, 210 * kMilli), IsEmpty());
  EXPECT_THAT(log_.Between(199 * kMilli, 211 * kMilli),
              ElementsAre(Span{110 * kMilli, 200 * kMilli}, Span{210 * kMilli, 300 * kMilli}));
}

TEST_F(StallLogTest, KeepsTheNewest) {
  for (std::size_t i = 0; i < trace::kMostStalls + 5; ++i) {
    Sleep(100);
    log_.Awake();
  }
  const auto stalls = log_.Between(0, 1'000'000 * kMilli);
  EXPECT_EQ(stalls.size(), trace::kMostStalls);
  EXPECT_EQ(stalls.front().end_nanos, 600 * kMilli);
}

}  // namespace
}  // namespace takt::session
