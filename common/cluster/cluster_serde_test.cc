// SPDX-License-Identifier: Apache-2.0
#include "common/cluster/cluster_serde.h"

#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/base/version.h"
#include "common/cluster/known_devices.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::cluster {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

Cluster Parse(const std::string& text) {
  absl::StatusOr<Cluster> cluster = ParseCluster(text, "c.yaml");
  EXPECT_TRUE(cluster.ok()) << cluster.status() << "\n" << text;
  return cluster.ok() ? *std::move(cluster) : Cluster();
}

std::string ErrorOf(const std::string& text) {
  return std::string(ParseCluster(text, "c.yaml").status().message());
}

std::string ReadExample(const std::string& name) {
  std::ifstream in(absl::StrCat(TAKT_SOURCE_DIR, "/deploy/examples/clusters/", name));
  return {std::istreambuf_iterator<char>(in), {}};
}

// Returns what plans depend on of every worker: hosts and GPUs only as far as workers share them.
std::multiset<std::string> Essence(const Cluster& cluster) {
  std::map<std::string, int> on_host, on_gpu;
  for (const plan::WorkerOffer& offer : cluster.offers) {
    ++on_host[offer.host];
    if (offer.device) ++on_gpu[offer.device->uuid];
  }
  std::multiset<std::string> workers;
  for (const plan::WorkerOffer& offer : cluster.offers) {
    const Device device = offer.device.value_or(Device());
    workers.insert(absl::StrCat(on_host[offer.host], " ", offer.processor, " ", offer.cores, " ",
                                offer.threads, " ", offer.memory_bytes, " ", offer.matmul_rates.f32,
                                " ", offer.matmul_rates.bf16, " ", offer.matmul_rates.fp8, " ",
                                offer.device.has_value(), " ", device.name, " ",
                                offer.device ? on_gpu[device.uuid] : 0, " ", device.memory_bytes,
                                " ", device.matmul_rates.f32, " ", device.matmul_rates.bf16));
  }
  return workers;
}

TEST(ClusterFile, OfTenLinesDescribesTwoThousandGpus) {
  const Cluster cluster = Parse(ReadExample("h100-2048.yaml"));
  ASSERT_EQ(cluster.offers.size(), 2048u);
  std::map<std::string, int> on_host;
  std::set<std::string> gpus;
  for (const plan::WorkerOffer& offer : cluster.offers) {
    ++on_host[offer.host];
    gpus.insert(offer.device->uuid);
    EXPECT_EQ(offer.device->memory_bytes, 80'000'000'000);
    EXPECT_EQ(offer.device->matmul_rates, AchievableRates(*FindKnownDevice("H100")));
  }
  EXPECT_EQ(on_host.size(), 256u);
  for (const auto& [host, workers] : on_host) EXPECT_EQ(workers, 8) << host;
  EXPECT_EQ(gpus.size(), 2048u);
  EXPECT_EQ(cluster.same_host, (Link{3e-6, 4e11}));
  EXPECT_EQ(cluster.between_hosts, (Link{1e-5, 5e10}));
  EXPECT_EQ(cluster.profile, nullptr);
}

TEST(ClusterFile, DescribesCores) {
  const Cluster cluster = Parse(ReadExample("two-core.yaml"));
  ASSERT_EQ(cluster.offers.size(), 2u);
  for (const plan::WorkerOffer& offer : cluster.offers) {
    EXPECT_EQ(offer.host, cluster.offers[0].host);
    EXPECT_EQ(offer.cores, 2);
    EXPECT_GT(offer.memory_bytes, 0);
    EXPECT_GT(offer.matmul_rates.f32, 0);
    EXPECT_FALSE(offer.device.has_value());
  }
}

TEST(ClusterFile, LeavesMuchOut) {
  const Cluster cluster = Parse("workers: {device: cpu, count: 3}");
  ASSERT_EQ(cluster.offers.size(), 3u);
  EXPECT_NE(cluster.offers[0].host, cluster.offers[1].host);
  EXPECT_EQ(cluster.offers[0].cores, 1);
  EXPECT_EQ(cluster.offers[0].memory_bytes, 0);
  EXPECT_EQ(cluster.offers[0].matmul_rates, MatmulRates());
  EXPECT_FALSE(cluster.same_host.has_value());
}

TEST(ClusterFile, RatesAndMemoryReplaceThoseOfAKnownDevice) {
  const Cluster cluster = Parse(
      "workers:\n- {device: A100, memory_bytes: 40000000000, flops_per_second: {bf16: 2e14}}\n");
  const Device& device = *cluster.offers[0].device;
  EXPECT_EQ(device.memory_bytes, 40'000'000'000);
  EXPECT_EQ(device.compute_capability, "8.0");
  EXPECT_EQ(device.matmul_rates.bf16, 2e14);
  EXPECT_EQ(device.matmul_rates.f32, AchievableRates(*FindKnownDevice("A100")).f32);
}

TEST(ClusterFile, WhatItDoesNotNameGetsOtherNamesThanWhatItDoes) {
  const Cluster cluster = Parse(
      "workers:\n"
      "- {device: H100, count: 2}\n"
      "- {device: H100, host: {name: host-1}, uuid: gpu-2}\n");
  std::set<std::string> hosts, gpus;
  for (const plan::WorkerOffer& offer : cluster.offers) {
    hosts.insert(offer.host);
    gpus.insert(offer.device->uuid);
  }
  EXPECT_EQ(hosts.size(), 3u);
  EXPECT_EQ(gpus.size(), 3u);
}

TEST(ClusterFile, NamesPlaceFieldValueRuleAndFix) {
  const std::string devices = "cpu, V100, A100, H100, H200, B200";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "c.yaml:1:1: workers: is missing; e.g. workers: {count: 8, device: H100}"},
      {"links: {}", "c.yaml:1:1: workers: is missing; e.g. workers: {count: 8, device: H100}"},
      {"workers: []", "c.yaml:1:1: workers: is missing; e.g. workers: {count: 8, device: H100}"},
      {"workers: {count: 2}", "c.yaml:1:1: workers[0].device: is missing; use one of " + devices +
                                  ", or another name and its flops_per_second"},
      {"workers:\n- device: X9\n",
       "c.yaml:2:11: workers[0].device is X9: must be one of " + devices +
           ", if its rates are not given; use one of these, or give flops_per_second: {f32: ..., "
           "bf16: ...}"},
      {"workers:\n- {device: cpu}\n- {device: cpu,\n   count: 0}",
       "c.yaml:4:11: workers[1].count is 0: must be between 1 and 1000000; correct it, or leave it "
       "out"},
      {"workers: {device: cpu, count: 1000001}",
       "c.yaml:1:31: workers[0].count is 1000001: must be between 1 and 1000000; correct it, or "
       "leave it out"},
      {"workers:\n- {device: cpu, count: 900000}\n- {device: cpu, count: 200000}",
       "c.yaml:1:1: workers is 1100000 in all: must be at most 1000000; correct the counts"},
      {"workers: {device: cpu, per_host: 0}",
       "c.yaml:1:34: workers[0].per_host is 0: must be between 1 and 1000000; correct it, or leave "
       "it out"},
      {"workers: {device: cpu, memory_bytes: 0}",
       "c.yaml:1:38: workers[0].memory_bytes is 0: must be between 1 and 1125899906842624; correct "
       "it, or leave it out"},
      {"workers: {device: cpu, memory_bytes: -5}",
       "c.yaml:1:38: workers[0].memory_bytes is -5: must be between 1 and 1125899906842624; "
       "correct it, or leave it out"},
      {"workers: {device: H100, flops_per_second: {f32: -1}}",
       "c.yaml:1:49: workers[0].flops_per_second.f32 is -1: must be FLOPs per second, between "
       "1e+06 and 1e+21, or 0 if it is not known; correct it"},
      {"workers: {device: cpu, host: {memory_bytes: 5}}",
       "c.yaml:1:45: workers[0].host.memory_bytes: is for workers with a GPU; write it as "
       "workers[0].memory_bytes"},
      {"workers: {device: cpu, per_host: 2, host: {name: a}}",
       "c.yaml:1:34: workers[0].per_host is 2: has no effect where host.name is given: all these "
       "workers are on that host; remove one of them"},
      {"workers: {device: cpu, uuid: a}",
       "c.yaml:1:30: workers[0].uuid: names a GPU, and these workers have none; remove it"},
      {"workers: {device: cpu}\nlinks: {between_racks: {latency_seconds: 1}}",
       "c.yaml:2:9: links.between_racks is a mapping: is not a known field; did you mean "
       "between_hosts? "
       "fields here: same_host, between_hosts"},
      {"workers: {device: cpu}\nlinks:\n  same_host: {latency_seconds: -1, bytes_per_second: 5}",
       "c.yaml:3:32: links.same_host.latency_seconds is -1: must be between 0 and 3600; give the "
       "seconds that a message without bytes takes"},
      {"workers: {device: cpu}\nlinks:\n  same_host: {latency_seconds: 0}",
       "c.yaml:3:3: links.same_host.bytes_per_second: is missing; give the rate of a long message"},
      {"workers: {device: cpu, cuont: 3}",
       "c.yaml:1:24: workers.cuont is 3: is not a known field; did you mean count? fields here: "
       "count, "
       "per_host, device, memory_bytes, flops_per_second, host, uuid"},
      {"workers: {device: cpu}\nprofile: {program_version: 0.0.1}",
       absl::StrCat("c.yaml:2:28: profile.program_version is 0.0.1: must be ", kTaktVersion,
                    ": what another version of the program measured does not hold; describe the "
                    "cluster again, or remove the profile")},
      {"just text",
       "c.yaml:1:1: cluster file is just text: must be a mapping of fields; fields: workers, "
       "links, profile"},
  };
  for (const auto& [text, message] : cases) EXPECT_EQ(ErrorOf(text), message) << text;
  for (const auto& [text, message] : cases)
    EXPECT_TRUE(absl::IsInvalidArgument(ParseCluster(text, "c").status())) << text;
}

TEST(ClusterFile, RefusesAProfileWithValuesThatNobodyMeasured) {
  EXPECT_THAT(ErrorOf(absl::StrCat("workers: {device: cpu}\nprofile: {program_version: ",
                                   kTaktVersion, ", messages: {bytes: -5}}")),
              StartsWith("c.yaml:2:1: profile: "));
}

TEST(ClusterFile, RefusesWhatIsTooLarge) {
  EXPECT_EQ(ErrorOf(std::string(kMostFileBytes + 1, ' ')),
            "c.yaml: cluster file: has 16777217 bytes; at most 16777216 are read; give a cluster "
            "file in YAML or JSON");
}

TEST(ClusterFile, ListsSomeErrorsOfMany) {
  std::string text = "workers:\n";
  for (int i = 0; i < 1000; ++i) absl::StrAppend(&text, "- {device: cpu, count: 0}\n");
  EXPECT_EQ(FieldErrorsOf(ParseCluster(text, "c.yaml").status()).size(), 20u);
}

TEST(ClusterFile, WhatIsWrittenReadsBackTheSame) {
  const std::string texts[] = {
      ReadExample("h100-2048.yaml"),
      ReadExample("two-core.yaml"),
      "workers: {device: cpu, count: 3}",
      // A host with workers of two kinds, and one whose workers share a GPU.
      "workers:\n"
      "- {device: cpu, host: {name: a, processor: 'EPYC \"9B14\": #1', cores: 96, threads: 4}, "
      "count: 2}\n"
      "- {device: H200, host: {name: a, cores: 96, memory_bytes: 7, flops_per_second: {f32: "
      "1e9}}}\n"
      "- {device: Q1, flops_per_second: {f32: 0, bf16: 3.3e13}, uuid: x, host: {name: b}, count: 2}"
      "\n- {device: A100, count: 20, per_host: 8}\n",
  };
  for (const std::string& text : texts) {
    const Cluster cluster = Parse(text);
    const std::string yaml = FormatCluster(cluster);
    for (const std::string& written : {yaml, FormatClusterJson(cluster)}) {
      const Cluster read = Parse(written);
      EXPECT_EQ(Essence(read), Essence(cluster)) << written;
      EXPECT_EQ(read.same_host, cluster.same_host);
      EXPECT_EQ(read.between_hosts, cluster.between_hosts);
      EXPECT_EQ(FormatCluster(read), yaml);
    }
  }
}

TEST(ClusterFile, IsShortAndReadable) {
  EXPECT_EQ(FormatCluster(Parse(ReadExample("h100-2048.yaml"))),
            absl::StrCat("# takt plan JOB.yaml --cluster THIS_FILE plans for these workers.\n"
                         "workers:\n"
                         "  - count: 2048\n"
                         "    per_host: 8\n"
                         "    device: \"H100\"\n"
                         "    memory_bytes: 80000000000\n"
                         "    flops_per_second: {f32: 46900000000000.0, bf16: 692300000000000.0}\n"
                         "links:\n"
                         "  same_host: {latency_seconds: 3e-06, bytes_per_second: 400000000000.0}\n"
                         "  between_hosts: {latency_seconds: 1e-05, bytes_per_second: "
                         "50000000000.0}\n"));
}

TEST(ClusterFile, KeepsTheProfileButNoLinksBetweenNamedHosts) {
  profile::Profile measured;
  measured.AddMessage(profile::KeyOfMessage(false, 4096), {.bytes = 4096, .seconds = 1.25e-5});
  measured.AddLink(profile::KeyOfLink("secret", "h", 4096), {.bytes = 4096, .seconds = 1e-4});
  measured.AddRank({.machine = "H100", .threads = 0}, {.update_seconds = 1e-12});
  Cluster cluster = Parse("workers: {device: H100}");
  cluster.profile = std::make_shared<const profile::Profile>(measured);
  const Cluster read = Parse(FormatCluster(cluster));
  EXPECT_THAT(FormatCluster(cluster), Not(HasSubstr("secret")));
  ASSERT_NE(read.profile, nullptr);
  EXPECT_EQ(read.profile->FindMessage(false, 4096), 1.25e-5);
  ASSERT_TRUE(read.profile->FindRank({.machine = "H100", .threads = 0}).has_value());
}

// Measured rates all differ.
TEST(ClusterFile, TakesManyDifferentWorkers) {
  Cluster cluster;
  for (int i = 0; i < 4096; ++i) {
    cluster.offers.push_back({.host = absl::StrCat("h", i / 8),
                              .processor = "AMD EPYC 9B14",
                              .cores = 96,
                              .memory_bytes = std::int64_t{1} << 40,
                              .matmul_rates = {.f32 = 1e12 + i, .bf16 = 2e12 + i, .fp8 = 3e12 + i},
                              .device = Device{.name = "NVIDIA H100",
                                               .uuid = absl::StrCat("GPU-", i),
                                               .memory_bytes = 80'000'000'000,
                                               .matmul_rates = {.f32 = 4e13, .bf16 = 6e14 + i}}});
  }
  const std::string text = FormatCluster(cluster);
  EXPECT_LT(text.size(), kMostFileBytes);
  EXPECT_EQ(Parse(text).offers.size(), 4096u);
}

}  // namespace
}  // namespace takt::cluster
