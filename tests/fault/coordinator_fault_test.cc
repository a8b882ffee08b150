// SPDX-License-Identifier: Apache-2.0
// The coordinator hangs: it is there, holds its socket, and answers nothing.
#include <signal.h>

#include <string>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/command.h"
#include "tests/testing/cluster.h"

namespace takt {
namespace {

using integration::Command;
using testing::Cluster;
using testing::EmulatedJob;
using ::testing::HasSubstr;

bool AwaitInFile(const std::string& path, const std::string& text) {
  const absl::Time deadline = absl::Now() + Cluster::kPatience;
  while (!absl::StrContains(integration::ReadFile(path), text)) {
    if (absl::Now() > deadline) return false;
    absl::SleepFor(absl::Milliseconds(20));
  }
  return true;
}

// The worker that holds no rank.
std::string IdleWorker(Cluster& cluster) {
  for (const auto& [name, worker] : cluster.Workers()) {
    if (worker.state() == v1::WORKER_STATE_IDLE) return name;
  }
  ADD_FAILURE() << "all are busy";
  return "w0";
}

TEST(StoppedCoordinator, IsLeftByCommandsAndWorkersAndFindsItsJobTrainingWhenItGoesOn) {
  Cluster cluster(3);
  const std::string address = "unix:" + cluster.directory() + "/socket";
  cluster.Submit(EmulatedJob{.name = "a", .pipeline = 2, .steps = 1'000'000}.Yaml());
  const std::int64_t before = cluster.AwaitStep("a", 3).last_step().step();
  const std::string idle = IdleWorker(cluster);
  Command follow("takt", {"--coordinator", address, "logs", "-f", "a"});
  ASSERT_TRUE(follow.WaitForText("rank=")) << follow.err();

  cluster.coordinator().Signal(SIGSTOP);
  Command jobs("takt", {"--coordinator", address, "jobs"});
  EXPECT_EQ(jobs.Wait(), "exit status 3");
  EXPECT_THAT(jobs.err(), HasSubstr("no coordinator answers at " + address));
  EXPECT_EQ(follow.Wait(), "exit status 3") << follow.err();
  // Those that train have more to say than a Unix socket takes, and no ping gets through; they find
  // their stream as they left it.
  EXPECT_TRUE(AwaitInFile(cluster.directory() + "/" + idle + ".log", "not attached"));

  cluster.coordinator().Signal(SIGCONT);
  const std::int64_t after = cluster.AwaitStep("a", before + 1).last_step().step();
  const v1::Job job = cluster.AwaitStep("a", after + 20);
  EXPECT_EQ(job.state(), v1::JOB_STATE_RUNNING) << job.reason();
  EXPECT_EQ(job.generation(), 1);
  cluster.Cancel("a");
  EXPECT_EQ(cluster.AwaitEnd("a").state(), v1::JOB_STATE_CANCELLED);
  cluster.AwaitIdle({"w0", "w1", "w2"});
}

}  // namespace
}  // namespace takt
