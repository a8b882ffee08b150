// SPDX-License-Identifier: Apache-2.0
#include "coordinator/placement/waiting_reason.h"

#include "gtest/gtest.h"

namespace takt::placement {
namespace {

TEST(WaitingReason, TimesAreRoundedUpToFewValues) {
  EXPECT_EQ(InAbout(0), "in less than a minute");
  EXPECT_EQ(InAbout(60), "in less than a minute");
  EXPECT_EQ(InAbout(61), "in about 2 min");
  EXPECT_EQ(InAbout(12 * 60), "in about 15 min");
  EXPECT_EQ(InAbout(46 * 60), "in about 1 h");
  EXPECT_EQ(InAbout(3 * 3600), "in about 3 h");
  EXPECT_EQ(InAbout(3 * 3600 + 1), "in about 4 h");
  EXPECT_EQ(InAbout(25 * 3600), "in about 2 days");
  EXPECT_EQ(InAbout(1e11), "in more than 100 days");
}

TEST(WaitingReason, ManyJobsAreNotAllNamed) {
  const std::map<std::string, int> held = {{"a", 1}, {"b", 1}, {"c", 3},
                                           {"d", 1}, {"e", 1}, {"f", 2}};
  EXPECT_EQ(WhyItWaits({.need = {.workers = 9}, .held = held, .reserved_for = {}}),
            "needs 9 workers, 0 idle: 3 held by job c, 2 held by job f, 1 held by job a, 1 held by "
            "job b, 2 held by other jobs");
  const std::vector<std::string> before = {"a", "b", "c", "d", "e", "f"};
  EXPECT_EQ(WhyItWaits({.num_idle = 1, .held = {}, .reserved_for = before}),
            "needs 1 worker, 1 idle: reserved for jobs a, b, c, d and 2 others");
}

// A job that computes on CPUs is refused with such a transport.
TEST(WaitingReason, DeviceCpuAloneIsNotOfferedToATransportBetweenGpus) {
  const std::vector<std::string> none;
  Need need{.workers = 2, .device = config::DeviceKind::kCuda, .cuda_ipc = true};
  EXPECT_EQ(WhyItWaits({.need = need, .num_unfit = 2, .held = {}, .reserved_for = none}),
            "needs 2 workers with a GPU, 0 idle: 2 idle without, which transport: auto with "
            "device: cpu would take");
  need.cuda_ipc = false;
  EXPECT_EQ(WhyItWaits({.need = need, .num_unfit = 2, .held = {}, .reserved_for = none}),
            "needs 2 workers with a GPU, 0 idle: 2 idle without, which device: cpu would take");
}

TEST(WaitingReason, WhoIsPausedIsNamed) {
  const std::vector<std::string> none;
  EXPECT_EQ(WhyItWaits({.held = {}, .drained = 2, .reserved_for = none, .preempts = {"x"}}),
            "needs 1 worker, 0 idle: 2 drained; job x of a lower priority is paused for it");
  EXPECT_EQ(WhyItWaits({.held = {}, .drained = 2, .reserved_for = none, .preempts = {"x", "y"}}),
            "needs 1 worker, 0 idle: 2 drained; jobs x, y of lower priorities are paused for it");
}

}  // namespace
}  // namespace takt::placement
