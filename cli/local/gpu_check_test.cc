// SPDX-License-Identifier: Apache-2.0
#include "cli/local/gpu_check.h"

#include <string>
#include <string_view>

#include "gtest/gtest.h"

namespace takt::cli {
namespace {

using config::DeviceKind;
using config::TransportKind;

v1::Worker WithGpu(const std::string& uuid) {
  v1::Worker worker;
  worker.set_has_nccl(true);
  v1::Device& device = *worker.mutable_device();
  device.set_uuid(uuid);
  device.set_name("NVIDIA H200");
  device.set_compute_capability("9.0");
  return worker;
}

config::JobSpec Job(TransportKind transport, int pipeline = 2) {
  config::JobSpec job;
  job.model.family = model::Family::kGpt2;
  job.parallelism.pipeline = pipeline;
  job.parallelism.transport = transport;
  return job;
}

std::string ErrorOf(const config::JobSpec& job, const std::vector<v1::Worker>& workers) {
  const absl::Status status = CheckGpus(job, workers);
  EXPECT_TRUE(status.ok() || absl::IsInvalidArgument(status)) << status;
  return std::string(status.message());
}

TEST(GpuCheck, NcclNeedsAGpuForEachRank) {
  const std::vector<v1::Worker> one_gpu = {WithGpu("GPU-0"), WithGpu("GPU-0")};
  EXPECT_EQ(ErrorOf(Job(TransportKind::kNccl), one_gpu),
            "parallelism.transport is nccl: needs NCCL and a GPU of its own for each rank; the job "
            "begins with 2 ranks, and this machine has 1 such GPU; use transport auto or cuda_ipc, "
            "by which ranks may share a GPU, or fewer ranks");
  EXPECT_EQ(ErrorOf(Job(TransportKind::kNccl, 1), one_gpu), "");
  EXPECT_EQ(ErrorOf(Job(TransportKind::kNccl), {WithGpu("GPU-0"), WithGpu("GPU-1")}), "");
  for (const auto transport : {TransportKind::kAuto, TransportKind::kCudaIpc, TransportKind::kShm})
    EXPECT_EQ(ErrorOf(Job(transport), one_gpu), "");
}

TEST(GpuCheck, WorkersWithoutNcclDoNotCountForIt) {
  v1::Worker without = WithGpu("GPU-1");
  without.set_has_nccl(false);
  EXPECT_NE(ErrorOf(Job(TransportKind::kNccl), {WithGpu("GPU-0"), without}), "");
  EXPECT_EQ(ErrorOf(Job(TransportKind::kAuto), {WithGpu("GPU-0"), without}), "");
}

TEST(GpuCheck, NamesTheFieldThatNeedsAGpuWhereThereIsNone) {
  const std::string rule = ": needs workers with a GPU, and no worker of this machine has one";
  const auto begins = [&](const config::JobSpec& job, const std::string& field) {
    return ErrorOf(job, {v1::Worker()}).starts_with(field + rule);
  };
  EXPECT_TRUE(begins(Job(TransportKind::kNccl), "parallelism.transport is nccl"));
  EXPECT_TRUE(begins(Job(TransportKind::kCudaIpc), "parallelism.transport is cuda_ipc"));
  config::JobSpec job = Job(TransportKind::kAuto);
  EXPECT_EQ(ErrorOf(job, {v1::Worker()}), "") << "it computes on cores";
  job.parallelism.device = DeviceKind::kCuda;
  EXPECT_TRUE(begins(job, "parallelism.device is cuda"));
}

TEST(GpuCheck, GpusThatDoNotMultiplyFp8DoNotCountForIt) {
  v1::Worker old = WithGpu("GPU-1");
  old.mutable_device()->set_name("NVIDIA A100");
  old.mutable_device()->set_compute_capability("8.0");
  config::JobSpec job = Job(TransportKind::kAuto);
  EXPECT_EQ(ErrorOf(job, {WithGpu("GPU-0"), old}), "");
  job.fp8 = model::Fp8Recipe::kTensor;
  EXPECT_EQ(ErrorOf(job, {WithGpu("GPU-0"), old}),
            "precision is fp8: needs a GPU of compute capability 8.9 or newer, and NVIDIA A100 has "
            "8.0; use precision: bf16, or parallelism.device: cpu");
  EXPECT_EQ(ErrorOf(job, {WithGpu("GPU-0"), old, WithGpu("GPU-2")}), "");
  EXPECT_EQ(ErrorOf(job, {v1::Worker(), v1::Worker()}), "") << "it computes on cores";
  job.parallelism.device = DeviceKind::kCpu;
  EXPECT_EQ(ErrorOf(job, {old, old}), "");
}

TEST(GpuCheck, CountsWorkersWithAGpu) {
  EXPECT_EQ(ErrorOf(Job(TransportKind::kAuto, 3), {WithGpu("GPU-0"), v1::Worker()}),
            "parallelism.device is auto: the job computes on GPUs and begins with 3 ranks, and 1 "
            "of the workers of this machine can hold one; use cpu with transport auto, or fewer "
            "ranks");
}

}  // namespace
}  // namespace takt::cli
