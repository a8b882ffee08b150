// SPDX-License-Identifier: Apache-2.0
// Workers are killed and come back 2,000 times. The coordinator, and the worker that is never
// killed, keep their memory, descriptors and threads. `tests/long.sh soak` runs it.
#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "tests/testing/cluster.h"

namespace takt {
namespace {

using testing::Cluster;

// Buffers and pools have their size after the first cycles. SQLite's cache of pages, which may have
// 2 MiB, still grows after hundreds.
constexpr int kWarmupCycles = 1000, kCycles = 2000;
constexpr int kPrintEvery = 200;
constexpr int kCyclesPerJob = 50;
constexpr absl::Duration kMostWithoutSteps = absl::Seconds(30);
constexpr std::int64_t kMostGrowthKib = 1024;  // in 1,000 cycles

struct Usage {
  std::int64_t rss_kib = 0, threads = 0, descriptors = 0;
};

std::ostream& operator<<(std::ostream& out, const Usage& usage) {
  return out << usage.rss_kib << " KiB, " << usage.threads << " threads, " << usage.descriptors
             << " descriptors";
}

Usage UsageOf(pid_t pid) {
  Usage usage;
  const std::string process = absl::StrCat("/proc/", pid);
  std::ifstream status(process + "/status");
  for (std::string key; status >> key;) {
    if (key == "VmRSS:") status >> usage.rss_kib;
    if (key == "Threads:") status >> usage.threads;
  }
  for (const auto& entry : std::filesystem::directory_iterator(process + "/fd")) {
    static_cast<void>(entry);
    ++usage.descriptors;
  }
  return usage;
}

void ExpectFlat(const std::string& who, const Usage& before, const Usage& after) {
  std::cout << who << " after " << kWarmupCycles << " cycles: " << before << ", after " << kCycles
            << ": " << after << "\n";
  const std::int64_t most = kMostGrowthKib * (kCycles - kWarmupCycles) / 1000;
  EXPECT_LE(after.rss_kib, before.rss_kib + most) << who;
  EXPECT_LE(after.threads, before.threads) << who;
  EXPECT_LE(after.descriptors, before.descriptors) << who;
}

std::string Yaml(const std::string& name) {
  return absl::StrCat("name: ", name,
                      "\nmodel: {family: emulated, layers: 4, forward_ms: 0.5, input_grad_ms: 0.5, "
                      "weight_grad_ms: 0.5, activation_bytes: 4096}"
                      "\nbatch: {global: 2, microbatch: 1}\nsteps: 1000000"
                      "\nparallelism: {pipeline: 2, schedule: 1f1b}"
                      "\ncheckpoint: {directory: ",
                      name, ", every_steps: 5}\n");
}

// Returns a worker of the job other than w0. At least one of its two ranks has one.
std::string VictimOf(const v1::Job& job) {
  for (const v1::BoundRank& rank : job.ranks()) {
    if (rank.worker() != "w0") return rank.worker();
  }
  return "w1";
}

// Leaves nothing of the job, and all workers attached and idle.
void End(Cluster& cluster, const std::string& name) {
  cluster.Cancel(name);
  cluster.AwaitEnd(name);
  cluster.Steps(name);  // the history looks at them
  cluster.Delete(name);
  cluster.AwaitIdle({"w0", "w1", "w2"});
}

TEST(Soak, DISABLED_WorkersThatComeAndGoLeaveNothingBehind) {
  Cluster cluster(3);
  Usage coordinator, survivor;
  std::string name;
  for (int cycle = 0; cycle < kCycles && !::testing::Test::HasFailure(); ++cycle) {
    if (cycle % kCyclesPerJob == 0) {
      if (!name.empty()) End(cluster, name);
      if (cycle % kPrintEvery == 0) {
        std::cout << cycle << " cycles: coordinator " << UsageOf(cluster.coordinator().pid())
                  << "; w0 " << UsageOf(cluster.worker("w0").pid()) << std::endl;
      }
      if (cycle == kWarmupCycles) {
        coordinator = UsageOf(cluster.coordinator().pid());
        survivor = UsageOf(cluster.worker("w0").pid());
      }
      name = absl::StrCat("job-", cycle);
      cluster.Submit(Yaml(name));
    }
    const std::int64_t step = cluster.Job(name).last_step().step();
    const v1::Job job = cluster.AwaitStep(name, step + 10, kMostWithoutSteps);
    ASSERT_FALSE(testing::HasEnded(job)) << job.reason();
    const std::string victim = VictimOf(job);
    cluster.Kill(cluster.worker(victim));
    cluster.StartWorker(victim);
  }
  End(cluster, name);
  cluster.ExpectNothingLost();
  ExpectFlat("coordinator", coordinator, UsageOf(cluster.coordinator().pid()));
  ExpectFlat("w0", survivor, UsageOf(cluster.worker("w0").pid()));
}

}  // namespace
}  // namespace takt
