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
                                  "NCCL)"));
  EXPECT_THAT(text.out, AllOf(HasSubstr(" 50G, 200G "), HasSubstr(" 50T, 800T ")));
  const json workers = json::parse(RunTakt(coordinator, {"workers", "-o", "json"}).out)["workers"];
  EXPECT_EQ(workers[1]["device"]["uuid"], "GPU-1");
  EXPECT_FALSE(workers[0].contains("device"));
  EXPECT_EQ(workers[0]["bf16_matmul_flops_per_second"], 2e11);
  EXPECT_EQ(workers[1]["device"]["bf16_matmul_flops_per_second"], 8e14);
}

}  // namespace
}  // namespace takt::cli
