// SPDX-License-Identifier: Apache-2.0
#include "cli/ui/cluster_json.h"

#include "gmock/gmock.h"

namespace takt::cli {
namespace {

v1::Worker MakeWorker(v1::WorkerState state) {
  v1::Worker worker;
  worker.set_name("w0");
  worker.set_state(state);
  worker.set_job("a");
  worker.set_rank(3);
  worker.mutable_last_seen()->set_seconds(1'700'000'000);
  return worker;
}

TEST(ClusterJson, WorkersThatAreHereDoNotChangeWithEachHeartbeat) {
  const Json here = WorkersJson({MakeWorker(v1::WORKER_STATE_BUSY)})[0];
  EXPECT_EQ(here["state"], "BUSY");
  EXPECT_EQ(here["rank"], 3);
  EXPECT_FALSE(here.contains("last_seen"));
  EXPECT_FALSE(here.contains("device"));
  EXPECT_EQ(WorkersJson({MakeWorker(v1::WORKER_STATE_LOST)})[0]["last_seen"],
            "2023-11-14T22:13:20Z");
}

TEST(ClusterJson, StatesOfNewerCoordinatorsAreNumbers) {
  EXPECT_EQ(WorkersJson({MakeWorker(static_cast<v1::WorkerState>(99))})[0]["state"], "99");
}

TEST(ClusterJson, JobsSayForWhatTheyWait) {
  v1::Job job;
  job.set_name("a");
  job.set_state(v1::JOB_STATE_QUEUED);
  job.set_reason("4 workers are needed, 2 are idle");
  job.set_steps(20);
  Json json = JobsJson({job})[0];
  EXPECT_EQ(json["state"], "QUEUED");
  EXPECT_EQ(json["reason"], "4 workers are needed, 2 are idle");
  EXPECT_FALSE(json.contains("loss"));
  job.mutable_last_step()->set_step(7);
  job.mutable_last_step()->set_loss(2.5);
  json = JobsJson({job})[0];
  EXPECT_EQ(json["step"], 7);
  EXPECT_EQ(json["loss"], 2.5);
}

TEST(ClusterJson, HeldJobsSayHowManyRanksAreHere) {
  v1::HeldJob job;
  job.set_name("lost");
  job.set_num_ranks(4);
  job.add_ranks();
  const Json json = HeldJobsJson({job})[0];
  EXPECT_EQ(json["num_ranks"], 4);
  EXPECT_EQ(json["ranks_here"], 1);
}

}  // namespace
}  // namespace takt::cli
