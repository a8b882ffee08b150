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
  const std::int64_t with_nccl = BytesOfLibraries(assignment);
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

}  // namespace
}  // namespace takt
