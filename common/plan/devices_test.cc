// SPDX-License-Identifier: Apache-2.0
// Tests which devices plans choose, and what they refuse on GPUs.
#include "common/config/testing/jobs.h"
#include "common/plan/offers.h"
#include "common/plan/plan.h"
#include "common/plan/worker_programs.h"
#include "gtest/gtest.h"

namespace takt::plan {
namespace {

using config::SmallGpt2Job;

TEST(PlanDevices, GivesExpertsMuonAndFp8ToGpusAndEmulatedLayersToCores) {
  config::JobSpec job = SmallGpt2Job();
  EXPECT_EQ(DeviceOf(job, config::DeviceKind::kAuto, /*any_gpu=*/true), config::DeviceKind::kCuda);
  job.model.family = model::Family::kQwen3Moe;
  job.model.mixture = model::Mixture{.experts = 4, .chosen = 2, .inner = 40};
  EXPECT_EQ(DeviceOf(job, config::DeviceKind::kAuto, /*any_gpu=*/true), config::DeviceKind::kCuda);
  job.muon.emplace();
  EXPECT_EQ(DeviceOf(job, config::DeviceKind::kAuto, /*any_gpu=*/true), config::DeviceKind::kCuda);
  job.fp8 = model::Fp8Recipe::kBlock;
  EXPECT_EQ(DeviceOf(job, config::DeviceKind::kAuto, /*any_gpu=*/true), config::DeviceKind::kCuda);
  job.model.family = model::Family::kEmulated;
  EXPECT_EQ(DeviceOf(job, config::DeviceKind::kAuto, /*any_gpu=*/true), config::DeviceKind::kCpu);
}

TEST(PlanDevices, GpusOfOlderWorkersComputeNoneOfThem) {
  config::JobSpec job = SmallGpt2Job();
  job.parallelism = {.pipeline = 2, .data = 1, .schedule = "1f1b"};
  job.muon.emplace();
  PlanOptions old{.max_workers = 2, .oldest_protocol = kAllWaysProtocolVersion - 1};
  EXPECT_EQ(MakePlan(job, old).status(), absl::OkStatus());
  old.device = config::DeviceKind::kCuda;
  EXPECT_EQ(MakePlan(job, old).status().message(),
            "optimizer.muon: is not known to a worker, whose program is too old; upgrade "
            "takt-worker, or remove it");
}

TEST(PlanDevices, CopiesBetweenGpusNeedGpusOfNewWorkers) {
  config::JobSpec job = SmallGpt2Job();
  job.parallelism = {.pipeline = 2, .data = 1, .schedule = "1f1b"};
  job.parallelism.transport = config::TransportKind::kCudaIpc;
  EXPECT_EQ(DeviceOf(job, config::DeviceKind::kAuto, /*any_gpu=*/false), config::DeviceKind::kCuda);
  EXPECT_EQ(NeededProtocol(job, config::DeviceKind::kCuda), kCudaIpcProtocolVersion);
  PlanOptions options{.max_workers = 2, .device = config::DeviceKind::kCuda};
  EXPECT_EQ(MakePlan(job, options).status(), absl::OkStatus());
  options.oldest_protocol = kCudaIpcProtocolVersion - 1;
  EXPECT_EQ(MakePlan(job, options).status().message(),
            "parallelism.transport: is not known to a worker, whose program is too old; upgrade "
            "takt-worker, or remove it");
}

TEST(PlanDevices, MatricesInFp8HaveSidesThatGpusMultiply) {
  config::JobSpec job = SmallGpt2Job();
  job.precision = config::Precision::kBf16;
  job.fp8 = model::Fp8Recipe::kTensor;
  job.parallelism = {.pipeline = 2, .data = 1, .schedule = "1f1b"};
  const auto plan = [&job](config::DeviceKind device) {
    return MakePlan(job, {.max_workers = 2, .device = device}).status();
  };
  EXPECT_EQ(plan(config::DeviceKind::kCuda), absl::OkStatus());
  job.fp8 = model::Fp8Recipe::kBlock;
  EXPECT_EQ(plan(config::DeviceKind::kCpu), absl::OkStatus());
  EXPECT_EQ(plan(config::DeviceKind::kCuda).message(),
            "precision is fp8: GPUs multiply matrices in FP8 whose sides are multiples of 128, and "
            "transformer.h.0.attn.c_attn.weight is 64 x 192; use precision: bf16, or device: cpu");
  job.model.hidden = 128;
  job.model.inner = 512;
  EXPECT_EQ(plan(config::DeviceKind::kCuda), absl::OkStatus());
  job.model.context = 31;
  job.microbatch = 1;
  EXPECT_EQ(plan(config::DeviceKind::kCuda).message(),
            "batch.microbatch is 1: x model.context (31) must be a multiple of 4 for FP8 in blocks "
            "on GPUs; correct one of them, or use fp8.recipe: tensor");
}

}  // namespace
}  // namespace takt::plan
