// SPDX-License-Identifier: Apache-2.0
#include "cli/testing/fake_coordinator.h"
#include "gmock/gmock.h"
#include "nlohmann/json.hpp"

namespace takt::cli {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

TEST(Workers, ShowsWhatEachComputesOn) {
  FakeCoordinator coordinator;
  coordinator.workers = [](auto&, auto&, v1::ListWorkersResponse& response) {
    v1::Worker& cores = *response.add_workers();
    cores.set_name("cores");
    cores.set_matmul_flops_per_second(5e10);
    cores.set_bf16_matmul_flops_per_second(2e11);
    v1::Worker& worker = *response.add_workers();
    worker.set_name("gpu");
    worker.set_has_nccl(true);
    v1::Device& device = *worker.mutable_device();
    device.set_index(1);
    device.set_name("NVIDIA H200");
    device.set_uuid("GPU-1");
    device.set_memory_bytes(std::int64_t{140} << 30);
    device.set_compute_capability("9.0");
    device.set_driver_version("13.0");
    device.set_numa_node(0);
    device.set_matmul_flops_per_second(5e13);
    device.set_bf16_matmul_flops_per_second(8e14);
    return grpc::Status::OK;
  };
  const Outcome text = RunTakt(coordinator, {"workers"});
  EXPECT_THAT(text.out, HasSubstr("cuda:1 NVIDIA H200 (140 GiB, compute 9.0, driver 13.0, node 0, "
                                  "NCCL, no cuDNN: slow attention)"));
  EXPECT_THAT(text.out, AllOf(HasSubstr(" 50G, 200G "), HasSubstr(" 50T, 800T ")));
  const json workers = json::parse(RunTakt(coordinator, {"workers", "-o", "json"}).out)["workers"];
  EXPECT_EQ(workers[1]["device"]["uuid"], "GPU-1");
  EXPECT_FALSE(workers[0].contains("device"));
  EXPECT_EQ(workers[0]["bf16_matmul_flops_per_second"], 2e11);
  EXPECT_EQ(workers[1]["device"]["bf16_matmul_flops_per_second"], 8e14);
}

TEST(Workers, ShowsWhoIsQuarantinedAndWhy) {
  FakeCoordinator coordinator;
  coordinator.workers = [](auto&, auto&, v1::ListWorkersResponse& response) {
    v1::Worker& worker = *response.add_workers();
    worker.set_name("w1");
    worker.set_state(v1::WORKER_STATE_IDLE);
    worker.set_quarantined(true);
    worker.mutable_quarantined_until()->set_seconds(1767348427);
    worker.set_blame("2026-01-02 10:00:07 job a: its stream ended");
    v1::Worker& other = *response.add_workers();
    other.set_name("w2");
    other.set_state(v1::WORKER_STATE_AWAY);
    other.set_blame("2026-01-02 10:00:07 job a: INTERNAL: boom");
    return grpc::Status::OK;
  };
  const Outcome text = RunTakt(coordinator, {"workers"});
  EXPECT_THAT(text.out, AllOf(HasSubstr("IDLE,QUARANTINED"), HasSubstr("AWAY")));
  EXPECT_THAT(text.out, HasSubstr("w1 is quarantined until 2026-01-02 10:07:07 UTC; takt undrain "
                                  "w1 ends that. Blamed for: 2026-01-02 10:00:07 job a: its "
                                  "stream ended\n"));
  EXPECT_THAT(text.out, HasSubstr("w2 is blamed for: 2026-01-02 10:00:07 job a: INTERNAL: boom\n"));
}

}  // namespace
}  // namespace takt::cli
