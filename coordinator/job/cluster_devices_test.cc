// SPDX-License-Identifier: Apache-2.0
// Tests what a job's ranks compute on.
#include "coordinator/job/cluster_harness.h"
#include "gmock/gmock.h"

namespace takt::job {
namespace {

using config::DeviceKind;
using store::JobState;

class ClusterDevices : public ClusterTest {
 protected:
  void AttachWithGpu(const std::string& name, const std::string& uuid, bool shared = false) {
    Attach(
        name, "a", std::nullopt,
        Device{.uuid = uuid, .memory_bytes = 600, .matmul_rates = {.f32 = 5e14}, .shared = shared});
  }
  // The job has a model that computes, and runs over two workers.
  static config::JobSpec ComputingSpec(const std::string& name,
                                       DeviceKind device = DeviceKind::kAuto) {
    config::JobSpec spec = Spec(name, 2);
    spec.model.family = model::Family::kGpt2;
    spec.parallelism.device = device;
    return spec;
  }
};

TEST_F(ClusterDevices, AJobOfACpuClusterComputesOnCpus) {
  AttachWorkers(2);
  ASSERT_TRUE(Submit(ComputingSpec("j")).ok());
  EXPECT_EQ(Session("w0").Last<control::Prepare>()->assignment()->device, DeviceKind::kCpu);
  EXPECT_EQ(Job("j").plan.device, DeviceKind::kCpu);
}

TEST_F(ClusterDevices, AJobGetsGpusWhereThereAreAnyAndIsPlannedForTheirMemoryAndSpeed) {
  hold_plans_ = true;
  AttachWithGpu("w0", "GPU-0", /*shared=*/true);
  AttachWithGpu("w1", "GPU-0", /*shared=*/true);
  ASSERT_TRUE(Submit(ComputingSpec("j")).ok());
  ASSERT_EQ(plans_.size(), 1u);
  EXPECT_EQ(plans_[0].options.device, DeviceKind::kCuda);
  EXPECT_EQ(plans_[0].options.worker_memory_bytes, 300);
  EXPECT_EQ(plans_[0].options.matmul_flops_per_second, 5e14);
  hold_plans_ = false;
  Settle();
  EXPECT_EQ(Session("w1").Last<control::Prepare>()->assignment()->device, DeviceKind::kCuda);
}

TEST_F(ClusterDevices, AMixedClusterIsRefusedForOneJobUnlessItAsksForCpus) {
  AttachWorkers(1);
  AttachWithGpu("gpu", "GPU-0");
  ASSERT_TRUE(Submit(ComputingSpec("j")).ok());
  EXPECT_EQ(Job("j").state, JobState::kQueued);
  EXPECT_EQ(Job("j").reason,
            "needs 2 workers with a GPU, 1 idle: 1 idle without, which device: cpu would take");
  ASSERT_TRUE(Submit(ComputingSpec("on-cpus", DeviceKind::kCpu)).ok());
  EXPECT_EQ(Job("on-cpus").state, JobState::kStarting);
  EXPECT_EQ(Session("gpu").Last<control::Prepare>()->assignment()->device, DeviceKind::kCpu);
}

TEST_F(ClusterDevices, AJobKeepsToWhatItHasComputedOn) {
  AttachWorkers(2);
  config::JobSpec spec = ComputingSpec("j");
  spec.checkpoint = config::Checkpoint{.directory = "j", .every_steps = 5};
  RunJob(spec);
  AttachWithGpu("gpu0", "GPU-0");
  AttachWithGpu("gpu1", "GPU-1");
  const control::JobKey first{"j", Generation(1)};
  Lose("w1");
  Say("w0", first, 0, control::Phase::kAborted);
  ASSERT_EQ(Job("j").generation, Generation(2));
  EXPECT_EQ(Session("w0").Last<control::Prepare>()->assignment()->device, DeviceKind::kCpu);
  EXPECT_EQ(Session("gpu1").Last<control::Prepare>(), nullptr);
}

TEST_F(ClusterDevices, EmulatedLayersTakeNoGpu) {
  AttachWithGpu("gpu", "GPU-0");
  ASSERT_TRUE(Submit(Spec("j", 1)).ok());
  EXPECT_EQ(Session("gpu").Last<control::Prepare>()->assignment()->device, DeviceKind::kCpu);
}

TEST_F(ClusterDevices, TheGpuOfAnotherWorkerIsRefusedOnTheStream) {
  AttachWithGpu("w0", "GPU-0");
  AttachWithGpu("w1", "GPU-0");
  ASSERT_TRUE(Session("w1").closed.has_value());
  EXPECT_THAT(std::string(Session("w1").closed->message()),
              testing::HasSubstr("worker w1 on h computes on the same GPU as worker w0"));
}

}  // namespace
}  // namespace takt::job
