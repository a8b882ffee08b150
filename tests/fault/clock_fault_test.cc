// SPDX-License-Identifier: Apache-2.0
// The wall clock of one process is set while it runs.
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "tests/testing/cluster.h"

namespace takt {
namespace {

using testing::Cluster;
using testing::EmulatedJob;
using testing::WorkerPlace;

// This is longer than the time until the clock is set back and a lease together.
constexpr absl::Duration kWatched = absl::Seconds(12);

TEST(ClockSetBack, OfAWorkerMakesItNeitherSilentNorItsJobFail) {
  const WorkerPlace set_back{.wrapper = {"/usr/bin/env",
                                         absl::StrCat("LD_PRELOAD=", TAKT_JUMPING_CLOCK),
                                         "TAKT_CLOCK_SET_BACK=4"}};
  Cluster cluster(2, {{"w1", set_back}});
  cluster.Submit(EmulatedJob{.name = "a", .pipeline = 2, .steps = 1'000'000}.Yaml());
  std::int64_t step = cluster.AwaitStep("a", 3).last_step().step();
  const absl::Time end = absl::Now() + kWatched;
  while (absl::Now() < end) {
    ASSERT_EQ(cluster.Workers().at("w1").state(), v1::WORKER_STATE_BUSY);
    const v1::Job job = cluster.AwaitStep("a", step + 1);
    ASSERT_EQ(job.state(), v1::JOB_STATE_RUNNING) << job.reason();
    step = job.last_step().step();
    absl::SleepFor(absl::Milliseconds(50));
  }
  EXPECT_EQ(cluster.Job("a").generation(), 1);
  cluster.Cancel("a");
}

}  // namespace
}  // namespace takt
