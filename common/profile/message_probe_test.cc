// SPDX-License-Identifier: Apache-2.0
#include "common/config/job_spec_serde.h"
#include "common/plan/plan.h"
#include "common/profile/probe.h"
#include "gtest/gtest.h"
#include "takt/v1/job_spec.pb.h"

namespace takt::profile {
namespace {

config::JobSpec Job() {
  config::JobSpec job;
  job.name = "j";
  job.parallelism.threads = 3;
  job.parallelism.transport = config::TransportKind::kTcp;
  job.priority = 70;
  return job;
}

TEST(MessageProbe, IsAJobThatACoordinatorTakes) {
  for (const int num_ranks : {2, 3, 64}) {
    const config::JobSpec probe = MessageProbeJob(Job(), num_ranks, 4096);
    const absl::StatusOr<config::JobSpec> sent = config::ToJobSpec(config::ToProto(probe));
    ASSERT_TRUE(sent.ok()) << sent.status();
    EXPECT_EQ(sent->parallelism.threads, 3);
    EXPECT_EQ(sent->parallelism.transport, config::TransportKind::kTcp);
    EXPECT_EQ(sent->priority, 70);
    const absl::StatusOr<plan::Plan> plan = plan::MakePlan(*sent, {.max_workers = num_ranks});
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_EQ(plan->mesh.size(), num_ranks);
  }
}

TEST(MessageProbe, PassesOnMessagesOfThatSize) {
  const config::JobSpec probe = MessageProbeJob(Job(), 2, 12345);
  const auto model = model::BuildModel(probe.model, probe.microbatch);
  ASSERT_TRUE(model.ok()) << model.status();
  for (const model::Layer& layer : model->layers) EXPECT_EQ(layer.cost.output_bytes, 12345);
}

TEST(MessageProbe, LeavesOutWhatOnlyGpusHave) {
  config::JobSpec job = Job();
  for (const auto kind : {config::TransportKind::kNccl, config::TransportKind::kCudaIpc}) {
    job.parallelism.transport = kind;
    EXPECT_EQ(MessageProbeJob(job, 2, 1).parallelism.transport, config::TransportKind::kAuto);
  }
}

}  // namespace
}  // namespace takt::profile
