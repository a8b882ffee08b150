// SPDX-License-Identifier: Apache-2.0
// Hosts whose clocks differ, and one that is set while it works.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/explain/explain.h"
#include "common/trace/messages.h"
#include "gtest/gtest.h"
#include "tests/observability/delayed_link.h"
#include "tests/testing/cluster.h"

namespace takt::observability {
namespace {

using testing::Cluster;
using testing::EmulatedJob;
using testing::WorkerPlace;

constexpr int kSteps = 20;

std::string Gloo(const std::string& name) {
  std::string yaml =
      EmulatedJob{
          .name = name, .pipeline = 2, .microbatches = 4, .steps = kSteps, .milliseconds = 4}
          .Yaml();
  return yaml.replace(yaml.rfind('}'), 1, ", transport: gloo}");
}

int CountMessages(const trace::JobTrace& trace) {
  return static_cast<int>(trace::FindMessages(trace).size()) * trace.num_steps();
}

// Messages that end before they begin, by the clocks as the workers have them.
int CountImpossible(const trace::JobTrace& trace) {
  int count = 0;
  for (int step = 0; step < trace.num_steps(); ++step) {
    for (const trace::Message& message : trace::FindMessages(trace)) {
      const auto at = [&](trace::Place place) {
        return trace.ranks[place.rank].steps[step].body[place.instruction];
      };
      count += at(message.recv).end_nanos < at(message.send).start_nanos ? 1 : 0;
    }
  }
  return count;
}

void ExpectPossible(const trace::Timeline& timeline) {
  EXPECT_GT(timeline.flows.size(), 0u);
  for (const trace::Flow& flow : timeline.flows) {
    EXPECT_GE(timeline.slices[flow.recv].end_nanos, timeline.slices[flow.send].start_nanos);
  }
}

TEST(Clocks, HalfASecondApartInTwoNetworksNoMessageArrivesBeforeItWasSent) {
  constexpr std::int64_t kAhead = 500'000'000;
  const auto link = DelayedLink::Create(absl::Milliseconds(1));
  if (!link.ok()) GTEST_SKIP() << "no namespaces on this machine: " << link.status();
  const std::string ahead = absl::StrCat(TAKT_ELSEWHERE, " --clock-ahead ", kAhead, " /bin/true");
  if (std::system(ahead.c_str()) != 0) GTEST_SKIP() << "no time namespaces on this machine";

  Cluster cluster(2, {{"w0",
                       {.wrapper = {TAKT_ELSEWHERE, "--net", (*link)->NetFile(0)},
                        .arguments = {"--data-address", DelayedLink::Address(0)}}},
                      {"w1",
                       {.wrapper = {TAKT_ELSEWHERE, "--net", (*link)->NetFile(1), "--clock-ahead",
                                    absl::StrCat(kAhead)},
                        .arguments = {"--data-address", DelayedLink::Address(1)}}}});
  cluster.Submit(Gloo("apart"));
  ASSERT_EQ(cluster.AwaitEnd("apart").state(), v1::JOB_STATE_SUCCEEDED);
  const trace::JobTrace trace = cluster.Trace("apart", kSteps);
  ASSERT_GT(trace.num_steps(), 5);
  // One of two directions, but for a message that took longer than that: the clocks were apart.
  EXPECT_GT(CountImpossible(trace), CountMessages(trace) / 4);
  // Whichever rank it is that is ahead.
  const std::int64_t measured =
      std::abs(trace.ranks[0].clock.offset_nanos - trace.ranks[1].clock.offset_nanos);
  const trace::Timeline timeline = trace::MakeTimeline(trace).value();
  EXPECT_LE(std::abs(measured - kAhead), timeline.clock_error_nanos);
  EXPECT_LT(timeline.clock_error_nanos, kAhead / 4);
  ExpectPossible(timeline);
  std::printf("clocks %.3f ms apart by the exchanges, give or take %.3f ms\n",
              1e-6 * static_cast<double>(measured),
              1e-6 * static_cast<double>(timeline.clock_error_nanos));
}

TEST(Clocks, WallClockThatJumpsChangesNothing) {
  const WorkerPlace jumping{
      .wrapper = {"/usr/bin/env", absl::StrCat("LD_PRELOAD=", TAKT_JUMPING_CLOCK)}};
  Cluster cluster(2, {{"w1", jumping}});
  cluster.Submit(Gloo("jumping"));
  ASSERT_EQ(cluster.AwaitEnd("jumping").state(), v1::JOB_STATE_SUCCEEDED);
  const std::vector<v1::StepReport> steps = cluster.Steps("jumping");
  EXPECT_EQ(steps.size(), static_cast<std::size_t>(kSteps));
  const trace::JobTrace trace = cluster.Trace("jumping", kSteps);
  ASSERT_GT(trace.num_steps(), 5);
  const trace::Timeline timeline = trace::MakeTimeline(trace).value();
  EXPECT_LT(timeline.clock_error_nanos, 100'000'000);
  ExpectPossible(timeline);
  for (const v1::StepReport& step : steps) EXPECT_LT(step.step_seconds(), 60);
  for (const trace::StepWindow& window : timeline.steps) {
    EXPECT_LT(window.end_nanos - window.start_nanos, 60'000'000'000);
  }
}

}  // namespace
}  // namespace takt::observability
