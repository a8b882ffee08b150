// SPDX-License-Identifier: Apache-2.0
// A worker's process stands still most of the time: its rank is named, and evicted for a spare.
#include <signal.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/cluster.h"

namespace takt {
namespace {

using testing::Cluster;
using ::testing::HasSubstr;

constexpr absl::Duration kStill = absl::Milliseconds(40), kRuns = absl::Milliseconds(10);
constexpr absl::Duration kPatience = absl::Minutes(2);

// Lets the worker run for a fifth of the time, until `done` or for kPatience.
template <class Done>
void Slow(cli::Process& worker, Done done) {
  const absl::Time end = absl::Now() + kPatience;
  while (absl::Now() < end && !done()) {
    worker.Signal(SIGSTOP);
    absl::SleepFor(kStill);
    worker.Signal(SIGCONT);
    absl::SleepFor(kRuns);
  }
}

TEST(StragglerFault, ASlowProcessIsNamedAndEvictedForASpare) {
  Cluster cluster(3);
  cluster.Submit(absl::StrCat(
      testing::EmulatedJob{.name = "j", .pipeline = 2, .steps = 1'000'000, .milliseconds = 4}
          .Yaml(),
      "elastic: {evict_stragglers: true}\ncheckpoint: {directory: ", cluster.directory(),
      "/saved, every_steps: 100}\n"));
  const v1::Job before = cluster.AwaitStep("j", 5);
  ASSERT_EQ(before.ranks_size(), 2);
  const std::string slow = before.ranks(1).worker();
  Slow(cluster.worker(slow), [&] { return cluster.Job("j").generation() != before.generation(); });
  const v1::Job after = cluster.AwaitJob("j", [&](const v1::Job& job) {
    const bool anew = job.generation() != before.generation() && job.ranks_size() == 2;
    return (anew && job.state() == v1::JOB_STATE_RUNNING) || testing::HasEnded(job);
  });
  ASSERT_EQ(after.state(), v1::JOB_STATE_RUNNING) << after.reason();
  for (const v1::BoundRank& rank : after.ranks()) EXPECT_NE(rank.worker(), slow);
  std::string reasons;
  for (const v1::JobTransition& transition : after.transitions())
    absl::StrAppend(&reasons, transition.reason(), "\n");
  EXPECT_THAT(reasons,
              HasSubstr(absl::StrCat("worker ", slow, " (rank 1) is evicted: it computes")));
  EXPECT_GE(after.resumed_step(), before.last_step().step()) << "nothing is lost";
  cluster.Cancel("j");
}

}  // namespace
}  // namespace takt
