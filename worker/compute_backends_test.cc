// SPDX-License-Identifier: Apache-2.0
#include "worker/compute_backends.h"

#include "gmock/gmock.h"

namespace takt {
namespace {

TEST(ComputeBackends, AreTheCoresUnlessTheJobAsksForGpus) {
  for (const auto device : {config::DeviceKind::kAuto, config::DeviceKind::kCpu}) {
    const auto backends = CreateComputeBackends({}, {.device = device}, 1);
    ASSERT_TRUE(backends.ok()) << backends.status();
    EXPECT_TRUE((*backends)->memory_is_host());
  }
}

TEST(ComputeBackends, AreTheCoresForAnEmulatedModel) {
  control::Assignment assignment{.device = config::DeviceKind::kCuda};
  assignment.job.model.family = model::Family::kEmulated;
  const auto backends = CreateComputeBackends({}, assignment, 1);
  ASSERT_TRUE(backends.ok()) << backends.status();
  EXPECT_TRUE((*backends)->memory_is_host());
}

TEST(ComputeBackends, ProductsLeaveRoomForTheKernelsOfNccl) {
  control::Assignment assignment;
  assignment.mesh.pp_size = assignment.mesh.dp_size = 1;
  EXPECT_EQ(SmsForCommunication(assignment), 0);
  assignment.mesh.pp_size = 4;
  EXPECT_EQ(SmsForCommunication(assignment), 8);
  assignment.mesh.dp_size = 2;
  EXPECT_EQ(SmsForCommunication(assignment), 16);
  const std::int64_t of_replicas = BytesOfLibraries(assignment);
  assignment.mesh.tp_size = 2;
  EXPECT_EQ(SmsForCommunication(assignment), 24);
  EXPECT_GT(BytesOfLibraries(assignment), of_replicas);
  assignment.mesh.tp_size = 1;
  assignment.job.parallelism.expert = 2;
  EXPECT_EQ(SmsForCommunication(assignment), 24);
  EXPECT_GT(BytesOfLibraries(assignment), of_replicas);
  const std::int64_t with_nccl = BytesOfLibraries(assignment);
  assignment.transport = config::TransportKind::kCudaIpc;
  EXPECT_EQ(SmsForCommunication(assignment), 16) << "the channels take none";
  EXPECT_EQ(BytesOfLibraries(assignment), with_nccl) << "a pair may go by NCCL";
  assignment.transport = config::TransportKind::kShm;
  EXPECT_EQ(SmsForCommunication(assignment), 0);
  EXPECT_LT(BytesOfLibraries(assignment), with_nccl);
}

TEST(ComputeBackends, RefusesAJobOnGpusWhereThereIsNone) {
  const auto backends = CreateComputeBackends({}, {.device = config::DeviceKind::kCuda}, 1);
  EXPECT_EQ(backends.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(backends.status().message()),
              ::testing::HasSubstr("this worker has none"));
}

TEST(ComputeBackends, RefusesFp8OnGpusThatDoNotMultiplyIt) {
  control::Assignment assignment{.device = config::DeviceKind::kCuda};
  assignment.job.fp8 = model::Fp8Recipe::kTensor;
  Device device;
  device.name = "NVIDIA A100";
  device.compute_capability = "8.0";
  EXPECT_EQ(CreateComputeBackends({.device = device}, assignment, 1).status().message(),
            "precision is fp8: needs a GPU of compute capability 8.9 or newer, and NVIDIA A100 has "
            "8.0; use precision: bf16, or parallelism.device: cpu");
  assignment.job.fp8 = model::Fp8Recipe::kBlock;
  device.name = "NVIDIA B200";
  device.compute_capability = "10.0";
  EXPECT_EQ(CreateComputeBackends({.device = device}, assignment, 1).status().message(),
            "precision is fp8: recipe block needs a GPU of compute capability 9.0, and NVIDIA B200 "
            "has 10.0; use precision: bf16, or parallelism.device: cpu");
}

}  // namespace
}  // namespace takt
