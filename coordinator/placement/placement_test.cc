// SPDX-License-Identifier: Apache-2.0
#include "coordinator/placement/placement.h"

#include "common/base/version.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::placement {
namespace {

using config::DeviceKind;
using ::testing::ElementsAre;

class PlacementTest : public ::testing::Test {
 protected:
  Worker& Add(const std::string& name, const std::string& host) {
    Worker& worker = workers_[name];
    worker.session = membership::SessionId(static_cast<std::int64_t>(workers_.size()));
    worker.hello = {.worker = name,
                    .protocol_version = kProtocolVersion,
                    .host = host,
                    .cores = 8,
                    .memory_bytes = 800};
    worker.hello.matmul_rates.f32 = 5e10;
    return worker;
  }
  Worker& AddWithGpu(const std::string& name, const std::string& host, const std::string& uuid) {
    Worker& worker = Add(name, host);
    worker.hello.device = Device{.uuid = uuid, .memory_bytes = 100};
    worker.hello.device->matmul_rates.f32 = 1e14;
    return worker;
  }
  Gang All() const {
    Gang gang;
    for (const auto& [name, worker] : workers_) gang.push_back(&worker);
    return gang;
  }
  int Threads(const std::string& name) const {
    return ThreadsOf(spec_, {&workers_.at(name)}, workers_).front();
  }
  std::vector<std::string> IdleNames() const {
    std::vector<std::string> names;
    for (const GangWorker& idle : CapacityOf(workers_).idle) names.push_back(idle.name);
    return names;
  }

  Workers workers_;
  config::JobSpec spec_;
};

TEST_F(PlacementTest, NeighboursInThePipelineAreNeighboursOnAHost) {
  Add("a", "h2"), Add("b", "h1"), Add("c", "h2"), Add("d", "h1");
  EXPECT_THAT(IdleNames(), ElementsAre("b", "d", "a", "c"));
}

TEST_F(PlacementTest, GangIsSortedAsItsGrantWas) {
  AddWithGpu("a", "h1", "gpu0"), Add("b", "h2"), AddWithGpu("c", "h1", "gpu1"), Add("d", "h1");
  spec_.parallelism.pipeline = 4;
  for (const DeviceKind device : {DeviceKind::kCpu, DeviceKind::kCuda}) {
    if (device == DeviceKind::kCuda) spec_.parallelism.pipeline = 2;
    const std::vector<std::string> granted =
        GrantGangs({{.name = "j", .need = NeedOf(spec_, device)}}, CapacityOf(workers_))
            .front()
            .workers;
    Gang gang;
    for (auto it = granted.rbegin(); it != granted.rend(); ++it) gang.push_back(&workers_.at(*it));
    SortByRank(gang, device);
    std::vector<std::string> sorted;
    for (const Worker* worker : gang) sorted.push_back(worker->hello.worker);
    EXPECT_EQ(sorted, granted);
  }
}

TEST_F(PlacementTest, AGpuThatDoesNotMultiplyFp8GetsNoJobInFp8) {
  AddWithGpu("a", "h", "gpu0").hello.device->compute_capability = "8.0";
  AddWithGpu("b", "h", "gpu1").hello.device->compute_capability = "9.0";
  AddWithGpu("c", "h", "gpu2");  // of a capability that is not known
  spec_.parallelism.pipeline = 2;
  spec_.fp8 = model::Fp8Recipe::kTensor;
  const auto grant = [&](DeviceKind device) {
    return GrantGangs({{.name = "j", .need = NeedOf(spec_, device)}}, CapacityOf(workers_))
        .front()
        .workers;
  };
  EXPECT_THAT(grant(DeviceKind::kCuda), ElementsAre("b", "c"));
  spec_.parallelism.pipeline = 3;
  EXPECT_THAT(grant(DeviceKind::kCuda), ElementsAre());
  EXPECT_THAT(grant(DeviceKind::kCpu), ElementsAre("a", "b", "c"));
}

TEST_F(PlacementTest, WhatAPlanChoosesMayTakeAllWorkers) {
  const auto need = [&] { return NeedOf(spec_, DeviceKind::kCpu); };
  spec_.parallelism.pipeline = 2;
  EXPECT_EQ(need(), (Need{.workers = 2}));
  spec_.parallelism.data_auto = true;
  EXPECT_EQ(need(), (Need{.workers = 2, .up_to_all = true}));
  spec_.FixBits(/*chosen_data=*/3, /*chosen_microbatch=*/1);
  EXPECT_EQ(need(), (Need{.workers = 6}));
  spec_.parallelism.pipeline.reset();
  EXPECT_EQ(need(), (Need{.workers = 3, .up_to_all = true}));
}

TEST_F(PlacementTest, AnElasticJobThatHasBegunTakesWhatItsRangesAllow) {
  spec_.global_batch = 12;
  spec_.parallelism = {.pipeline = 2, .data = 3};
  spec_.elastic = {.data = config::SizeRange{.min = 1, .max = 5},
                   .pipeline = config::SizeRange{.min = 2, .max = 4}};
  EXPECT_EQ(NeedOf(spec_, DeviceKind::kCpu), (Need{.workers = 6}));
  EXPECT_EQ(NeedOf(spec_.WithOpenSizes(), DeviceKind::kCpu),
            (Need{.workers = 2, .up_to_all = true, .most = 16}));
  spec_.parallelism.tensor = 3;
  EXPECT_EQ(NeedOf(spec_.WithOpenSizes(), DeviceKind::kCpu),
            (Need{.workers = 6,
                  .up_to_all = true,
                  .most = 48,
                  .group = 3,
                  .protocol = kAllWaysProtocolVersion}));
}

TEST_F(PlacementTest, CapacityCountsWhoIsHeldDrainedAndLeaving) {
  for (const char* name : {"a", "f", "g"})
    Add(name, "h").hold = membership::Hold{.key = {.job = "j", .generation = Generation(1)}};
  workers_.at("f").drained = true;
  workers_.at("g").hold->key.generation = Generation(2);
  Add("b", "h").drained = true;
  Add("c", "h").leaving = true;
  Add("d", "h").session = membership::SessionId(0);
  Add("e", "h");
  Add("i", "h").blame.quarantined = true;
  Worker& away = Add("k", "h");
  away.away = "its stream ended";
  away.session = membership::SessionId(0);
  const Capacity capacity = CapacityOf(workers_);
  EXPECT_THAT(IdleNames(), ElementsAre("e"));
  ASSERT_EQ(capacity.held.size(), 2u);
  EXPECT_EQ(capacity.held[0].name, "j");
  EXPECT_EQ(capacity.held[0].generation, Generation(1));
  ASSERT_EQ(capacity.held[0].workers.size(), 1u);
  EXPECT_EQ(capacity.held[0].workers[0].name, "a");
  EXPECT_EQ(capacity.held[0].num_others, 1);  // it stays drained
  EXPECT_EQ(capacity.held[1].generation, Generation(2));
  EXPECT_EQ(capacity.drained, 1);
  EXPECT_EQ(capacity.leaving, 1);
  EXPECT_EQ(capacity.quarantined, 1);
}

TEST_F(PlacementTest, WorkersOfAHostShareItsMemoryAndTheSmallestShareCounts) {
  Add("a", "h1"), Add("b", "h2"), Add("c", "h2");
  EXPECT_EQ(PlanOptionsFor(spec_, All(), DeviceKind::kCpu, workers_).worker_memory_bytes, 400);
  workers_.at("a").hello.memory_bytes = 0;  // not known
  EXPECT_EQ(PlanOptionsFor(spec_, All(), DeviceKind::kCpu, workers_).worker_memory_bytes, 400);
}

TEST_F(PlacementTest, WorkersOfAGpuShareItsMemory) {
  AddWithGpu("a", "h", "gpu0"), AddWithGpu("b", "h", "gpu0"), AddWithGpu("c", "h", "gpu1");
  EXPECT_EQ(PlanOptionsFor(spec_, All(), DeviceKind::kCuda, workers_).worker_memory_bytes, 50);
}

TEST_F(PlacementTest, ThePlanKnowsTheOldestWorkersProtocol) {
  Add("a", "h").hello.protocol_version = kProtocolVersion;
  EXPECT_EQ(PlanOptionsFor(spec_, All(), DeviceKind::kCpu, workers_).oldest_protocol,
            kProtocolVersion);
  Add("b", "h").hello.protocol_version = kSpreadProtocolVersion - 1;
  EXPECT_EQ(PlanOptionsFor(spec_, All(), DeviceKind::kCpu, workers_).oldest_protocol,
            kSpreadProtocolVersion - 1);
}

TEST_F(PlacementTest, SlowestMeasuredWorkerSetsTheRate) {
  Add("a", "h"), Add("b", "h").hello.matmul_rates.f32 = 2e10;
  Add("c", "h").hello.matmul_rates.f32 = 0;  // not measured
  EXPECT_EQ(PlanOptionsFor(spec_, All(), DeviceKind::kCpu, workers_).matmul_flops_per_second, 2e10);
  for (auto& [name, worker] : workers_) worker.hello.matmul_rates.f32 = 0;
  EXPECT_EQ(PlanOptionsFor(spec_, All(), DeviceKind::kCpu, workers_).matmul_flops_per_second,
            plan::PlanOptions().matmul_flops_per_second);
}

TEST_F(PlacementTest, RateIsThatOfTheJobsPrecision) {
  Add("a", "h").hello.matmul_rates = {.f32 = 5e10, .bf16 = 3e11};
  Add("b", "h").hello.matmul_rates = {.f32 = 6e10, .bf16 = 2e11};
  EXPECT_EQ(PlanOptionsFor(spec_, All(), DeviceKind::kCpu, workers_).matmul_flops_per_second, 5e10);
  spec_.precision = model::Precision::kBf16;
  EXPECT_EQ(PlanOptionsFor(spec_, All(), DeviceKind::kCpu, workers_).matmul_flops_per_second, 2e11);
  workers_.at("b").hello.matmul_rates.bf16 = 0;  // an older worker does not tell it
  EXPECT_EQ(FlopsPerSecond(spec_, workers_.at("b"), DeviceKind::kCpu), 6e10);
  EXPECT_EQ(FlopsPerSecond(spec_, workers_.at("b"), DeviceKind::kCuda), 0);
  spec_.fp8 = model::Fp8Recipe::kBlock;
  EXPECT_EQ(FlopsPerSecond(spec_, workers_.at("a"), DeviceKind::kCpu), 3e11);
  workers_.at("a").hello.matmul_rates.fp8 = 1e11;
  EXPECT_EQ(FlopsPerSecond(spec_, workers_.at("a"), DeviceKind::kCpu), 1e11);
}

TEST_F(PlacementTest, ThreadsAreAnEvenShareOfTheCoresUnlessTheSpecOrTheWorkerNamesThem) {
  Add("a", "h1"), Add("b", "h1"), Add("c", "h1"), Add("d", "h2");
  EXPECT_EQ(Threads("a"), 2);  // 8 cores, 3 workers
  EXPECT_EQ(Threads("d"), 8);
  workers_.at("b").session = membership::SessionId(0);
  EXPECT_EQ(Threads("a"), 4);
  workers_.at("a").hello.cores = 1;
  EXPECT_EQ(Threads("a"), 1);
  workers_.at("a").hello.threads = 3;
  EXPECT_EQ(Threads("a"), 3);
  EXPECT_EQ(Threads("c"), 4);  // its own share stays as it is
  workers_.at("c").hello.threads = 1'000'000;
  EXPECT_EQ(Threads("c"), config::kMaxThreads);
  spec_.parallelism.threads = 5;
  EXPECT_EQ(Threads("a"), 5);
}

TEST_F(PlacementTest, PlansAssumeTheThreadsThatRanksGet) {
  Add("a", "h1"), Add("b", "h1"), Add("c", "h2");
  const auto host = [&] { return PlanOptionsFor(spec_, All(), DeviceKind::kCpu, workers_).host; };
  EXPECT_EQ(host().threads, 4);
  workers_.at("b").hello.threads = 3;
  EXPECT_EQ(host().threads, 3);
  workers_.at("c").hello.threads = 2;
  EXPECT_EQ(host().threads, 2);
  EXPECT_EQ(host().workers, 1);  // of h2
  for (const auto& [name, worker] : workers_) EXPECT_GE(Threads(name), host().threads);
  EXPECT_EQ(host().ConditionsOf(2, 6, DeviceKind::kCpu).threads, 6);
}

TEST_F(PlacementTest, PlansAssumeTheFullestHostOfTheGang) {
  Add("a", "h1"), Add("b", "h2"), Add("c", "h2"), Add("d", "h3"), Add("e", "h3"), Add("f", "h3");
  for (auto& [name, worker] : workers_) worker.hello.processor = "of " + worker.hello.host;
  const Gang gang = {&workers_.at("a"), &workers_.at("b")};
  const plan::Host host = PlanOptionsFor(spec_, gang, DeviceKind::kCpu, workers_).host;
  EXPECT_EQ(host.machine, "of h2");
  EXPECT_EQ(host.workers, 2);  // one of them is not of the gang
  EXPECT_EQ(host.ConditionsOf(2, {}, config::DeviceKind::kCpu).ranks_per_host, 1);
  EXPECT_EQ(host.threads, 4);
  EXPECT_EQ(host.threads, Threads("b"));
  workers_.at("c").session = membership::SessionId(0);
  workers_.at("a").hello.cores = 4;
  EXPECT_EQ(PlanOptionsFor(spec_, gang, DeviceKind::kCpu, workers_).host.machine, "of h1");
  workers_.at("a").hello.processor = "";  // an older worker does not tell it
  EXPECT_EQ(PlanOptionsFor(spec_, gang, DeviceKind::kCpu, workers_).host.machine, "");
}

TEST_F(PlacementTest, ASubmittedJobIsCheckedForTheWorkersThatAreThere) {
  spec_.parallelism.pipeline = 5;
  spec_.parallelism.data = 2;
  plan::PlanOptions options = PlanOptionsFor(spec_, workers_);
  EXPECT_EQ(options.max_workers, 10);
  EXPECT_EQ(options.host.machine, "");
  EXPECT_EQ(options.matmul_flops_per_second, plan::PlanOptions().matmul_flops_per_second);
  Add("a", "h").hello.processor = "p";
  options = PlanOptionsFor(spec_, workers_);
  EXPECT_EQ(options.max_workers, 10);
  EXPECT_EQ(options.host.machine, "p");
  EXPECT_EQ(options.device, DeviceKind::kCpu);
  EXPECT_EQ(options.matmul_flops_per_second, 5e10);
  EXPECT_EQ(options.worker_memory_bytes, 0);
  AddWithGpu("b", "h", "gpu0").hello.device->name = "a GPU";
  options = PlanOptionsFor(spec_, workers_);
  EXPECT_EQ(options.host.machine, "a GPU");
  EXPECT_EQ(options.matmul_flops_per_second, 1e14);
}

TEST_F(PlacementTest, PlacesSayWhatEachRankRunsOn) {
  Add("a", "h1"), AddWithGpu("b", "h1", "gpu0"), AddWithGpu("c", "h2", "gpu1");
  for (auto& [name, worker] : workers_) {
    worker.hello.processor = "p";
    if (worker.hello.device) worker.hello.device->name = "g";
  }
  const auto places = PlacesOf(All(), {1, 2, 3}, DeviceKind::kCpu);
  ASSERT_EQ(places.size(), 3u);
  EXPECT_EQ(places[1].host, "h1");
  EXPECT_EQ(ToString(places[1].conditions), "p, 2 threads, 2 ranks on the host");
  EXPECT_EQ(ToString(places[2].conditions), "p, 3 threads, 1 rank on the host");
  const auto on_gpus = PlacesOf({&workers_.at("b"), &workers_.at("c")}, {1, 1}, DeviceKind::kCuda);
  EXPECT_EQ(on_gpus[0].conditions, (profile::Conditions{.machine = "g", .threads = 0}));
}

TEST_F(PlacementTest, JobKeepsTheDeviceThatItHad) {
  AddWithGpu("a", "h", "gpu0");
  EXPECT_EQ(DeviceOf(spec_, DeviceKind::kAuto, workers_), DeviceKind::kCuda);
  EXPECT_EQ(DeviceOf(spec_, DeviceKind::kCpu, workers_), DeviceKind::kCpu);
  workers_.at("a").session = membership::SessionId(0);
  EXPECT_EQ(DeviceOf(spec_, DeviceKind::kAuto, workers_), DeviceKind::kCpu);
  spec_.parallelism.device = DeviceKind::kCuda;
  EXPECT_EQ(DeviceOf(spec_, DeviceKind::kCpu, workers_), DeviceKind::kCuda);
}

}  // namespace
}  // namespace takt::placement
