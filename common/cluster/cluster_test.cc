// SPDX-License-Identifier: Apache-2.0
#include "common/cluster/cluster.h"

#include "absl/strings/str_cat.h"
#include "common/cluster/known_devices.h"
#include "gtest/gtest.h"

namespace takt::cluster {
namespace {

// Returns `hosts` x `per_host` workers, each with a GPU of its own.
Cluster Gpus(int hosts, int per_host) {
  Cluster cluster{.same_host = Link{1e-6, 1e11}, .between_hosts = Link{1e-5, 1e10}};
  for (int i = 0; i < hosts * per_host; ++i) {
    cluster.offers.push_back({.host = absl::StrCat("h", i / per_host),
                              .memory_bytes = 1000,
                              .matmul_rates = {.f32 = 1e9, .bf16 = 2e9},
                              .device = Device{.name = "H100",
                                               .uuid = absl::StrCat("g", i),
                                               .memory_bytes = 80,
                                               .matmul_rates = {.f32 = 1e12, .bf16 = 8e12}}});
  }
  return cluster;
}

config::JobSpec Job(std::optional<int> pipeline, std::optional<int> data = std::nullopt) {
  config::JobSpec job;
  job.model.family = model::Family::kGpt2;
  job.model.layers = 10;
  job.parallelism.pipeline = pipeline;
  job.parallelism.data = data;
  return job;
}

double LatencyFor(const config::JobSpec& job, const Cluster& cluster) {
  return PlanOptionsFor(job, cluster)->link_latency_seconds;
}

TEST(PlanOptionsForCluster, TakesRatesAndMemoryOfTheDevice) {
  const auto options = PlanOptionsFor(Job(2), Gpus(2, 4));
  ASSERT_TRUE(options.ok());
  EXPECT_EQ(options->device, config::DeviceKind::kCuda);
  EXPECT_EQ(options->max_workers, 8);
  EXPECT_EQ(options->matmul_flops_per_second, 1e12);
  EXPECT_EQ(options->worker_memory_bytes, 80);

  config::JobSpec on_cores = Job(2);
  on_cores.parallelism.device = config::DeviceKind::kCpu;
  const auto cores = PlanOptionsFor(on_cores, Gpus(2, 4));
  ASSERT_TRUE(cores.ok());
  EXPECT_EQ(cores->matmul_flops_per_second, 1e9);
  EXPECT_EQ(cores->worker_memory_bytes, 250);
}

TEST(PlanOptionsForCluster, TakesTheLinkThatTheRanksNeed) {
  const Cluster cluster = Gpus(4, 4);
  EXPECT_EQ(LatencyFor(Job(4), cluster), 1e-6);
  EXPECT_EQ(LatencyFor(Job(5), cluster), 1e-5);
  EXPECT_EQ(LatencyFor(Job(2, 2), cluster), 1e-6);
  EXPECT_EQ(LatencyFor(Job(2, 4), cluster), 1e-5);
  EXPECT_EQ(LatencyFor(Job(std::nullopt), cluster), 1e-5);      // up to 12 stages
  EXPECT_EQ(LatencyFor(Job(std::nullopt), Gpus(2, 12)), 1e-6);  // and no more
  EXPECT_EQ(LatencyFor(Job(std::nullopt), Gpus(1, 4)), 1e-6);   // as there are 4 workers
  config::JobSpec open = Job(2);
  open.parallelism.data_auto = true;
  EXPECT_EQ(LatencyFor(open, cluster), 1e-5);  // as many replicas as there are workers
}

TEST(PlanOptionsForCluster, UsesMeasuredMessagesUnlessTheLinkIsGiven) {
  Cluster cluster = Gpus(2, 2);
  EXPECT_FALSE(PlanOptionsFor(Job(2), cluster)->use_measured_links);
  cluster.same_host.reset();
  const auto options = PlanOptionsFor(Job(2), cluster);
  EXPECT_TRUE(options->use_measured_links);
  EXPECT_EQ(options->link_latency_seconds, plan::PlanOptions().link_latency_seconds);
}

TEST(PlanOptionsForCluster, LeavesOutWorkersWithoutAGpuOrSaysThatThereIsNone) {
  Cluster cluster = Gpus(1, 2);
  cluster.offers.push_back({.host = "cores"});
  EXPECT_EQ(PlanOptionsFor(Job(2), cluster)->max_workers, 2);
  cluster.offers.erase(cluster.offers.begin(), cluster.offers.begin() + 2);
  EXPECT_EQ(PlanOptionsFor(Job(2), cluster)->max_workers, 1);
  config::JobSpec job = Job(1);
  job.parallelism.device = config::DeviceKind::kCuda;
  EXPECT_TRUE(absl::IsFailedPrecondition(PlanOptionsFor(job, cluster).status()));
}

TEST(PlanOptionsForCluster, CountsOnGpusThatMultiplyAsTheJobDoes) {
  const auto with = [](std::vector<std::string> capabilities) {
    Cluster cluster = Gpus(1, static_cast<int>(capabilities.size()));
    for (std::size_t i = 0; i < capabilities.size(); ++i)
      cluster.offers[i].device->compute_capability = capabilities[i];
    return cluster;
  };
  config::JobSpec job = Job(1);
  job.precision = config::Precision::kBf16;
  EXPECT_TRUE(PlanOptionsFor(job, with({"8.0"})).ok());
  job.fp8 = model::Fp8Recipe::kTensor;
  EXPECT_TRUE(PlanOptionsFor(job, with({""})).ok()) << "it is not known";
  EXPECT_EQ(PlanOptionsFor(job, with({"8.0", "8.9", "10.0"}))->max_workers, 2);
  EXPECT_EQ(PlanOptionsFor(job, with({"8.0"})).status().message(),
            "precision is fp8: needs a GPU of compute capability 8.9 or newer, and H100 has 8.0; "
            "use precision: bf16, or parallelism.device: cpu");
  job.fp8 = model::Fp8Recipe::kBlock;
  EXPECT_TRUE(absl::IsInvalidArgument(PlanOptionsFor(job, with({"10.0"})).status()));
  job.parallelism.device = config::DeviceKind::kCpu;
  EXPECT_TRUE(PlanOptionsFor(job, with({"8.0"})).ok());
}

TEST(KnownDevices, RatesAreAShareOfThePeak) {
  const KnownDevice* h100 = FindKnownDevice("H100");
  ASSERT_NE(h100, nullptr);
  EXPECT_EQ(AchievableRates(*h100).bf16, kAchievableShare * 989e12);
  EXPECT_EQ(FindKnownDevice("h100"), nullptr);
  for (const KnownDevice& device : KnownDevices()) {
    EXPECT_GT(device.memory_bytes, 0) << device.name;
    EXPECT_NE(device.compute_capability, "") << device.name;
    EXPECT_GT(device.peak.bf16, device.peak.f32) << device.name;
  }
}

}  // namespace
}  // namespace takt::cluster
