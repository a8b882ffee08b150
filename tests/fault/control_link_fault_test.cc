// SPDX-License-Identifier: Apache-2.0
// The connections between workers and the coordinator are cut off or broken, while the workers
// reach one another: no job is hurt.
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/cluster.h"
#include "tests/testing/link.h"

namespace takt {
namespace {

using testing::Cluster;
using testing::ControlLink;
using testing::EmulatedJob;
using ::testing::HasSubstr;

// Workers give a connection up after 20 s without an answer, and dial again.
constexpr absl::Duration kCut = absl::Seconds(30);

class ControlLinkFault : public ::testing::Test {
 protected:
  ControlLinkFault() {
    cluster_.StartWorker("w0", first_.address());
    cluster_.StartWorker("w1", second_.address());
    cluster_.AwaitIdle({"w0", "w1"});
    cluster_.Submit(EmulatedJob{.name = "a", .pipeline = 2, .steps = 1'000'000}.Yaml());
    cluster_.AwaitStep("a", 3);
  }
  ~ControlLinkFault() override { cluster_.Cancel("a"); }

  // The job trains in its first generation, and further than now.
  void ExpectUnhurt() {
    const std::int64_t now = cluster_.Job("a").last_step().step();
    const v1::Job job = cluster_.AwaitStep("a", now + 20);
    EXPECT_EQ(job.state(), v1::JOB_STATE_RUNNING) << job.reason();
    EXPECT_EQ(job.generation(), 1) << job.reason();
  }
  v1::WorkerState StateOf(const std::string& worker) {
    return cluster_.Workers().at(worker).state();
  }
  void AwaitState(const std::string& worker, v1::WorkerState state) {
    const absl::Time deadline = absl::Now() + Cluster::kPatience;
    v1::WorkerState seen = StateOf(worker);
    while (seen != state && absl::Now() < deadline) {
      absl::SleepFor(absl::Milliseconds(20));
      seen = StateOf(worker);
    }
    // It may have changed since: a healed link brings what it held back, then its end.
    EXPECT_EQ(seen, state) << worker;
  }
  // While the time passes, the job is RUNNING.
  void Wait(absl::Duration time) {
    const absl::Time end = absl::Now() + time;
    while (absl::Now() < end) {
      const v1::Job job = cluster_.Job("a");
      ASSERT_EQ(job.state(), v1::JOB_STATE_RUNNING) << job.reason();
      absl::SleepFor(absl::Milliseconds(100));
    }
  }

  Cluster cluster_{0};
  ControlLink first_{cluster_.directory() + "/first", cluster_.directory() + "/socket"};
  ControlLink second_{cluster_.directory() + "/second", cluster_.directory() + "/socket"};
};

TEST_F(ControlLinkFault, CutToAllWorkersHurtsNoJob) {
  first_.Cut();
  second_.Cut();
  AwaitState("w0", v1::WORKER_STATE_AWAY);
  AwaitState("w1", v1::WORKER_STATE_AWAY);
  Wait(kCut);
  EXPECT_THAT(cluster_.Job("a").reason(), HasSubstr("nothing is heard of rank 0"));
  EXPECT_EQ(StateOf("w0"), v1::WORKER_STATE_AWAY);
  EXPECT_EQ(StateOf("w1"), v1::WORKER_STATE_AWAY);
  first_.Heal();
  second_.Heal();
  AwaitState("w0", v1::WORKER_STATE_BUSY);
  AwaitState("w1", v1::WORKER_STATE_BUSY);
  ExpectUnhurt();
}

TEST_F(ControlLinkFault, CutToOneWorkerHurtsNoJob) {
  second_.Cut();
  AwaitState("w1", v1::WORKER_STATE_AWAY);
  Wait(kCut);
  EXPECT_EQ(StateOf("w1"), v1::WORKER_STATE_AWAY);
  second_.Heal();
  AwaitState("w1", v1::WORKER_STATE_BUSY);
  ExpectUnhurt();
}

TEST_F(ControlLinkFault, ResetConnectionsHurtNoJob) {
  for (int i = 0; i < 5; ++i) {
    first_.Reset();
    ExpectUnhurt();
    first_.Reset();
    second_.Reset();
    ExpectUnhurt();
  }
}

}  // namespace
}  // namespace takt
