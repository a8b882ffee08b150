// SPDX-License-Identifier: Apache-2.0
#include "common/cluster/cluster_serde.h"

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/bounded_text.h"
#include "common/base/field_rules.h"
#include "common/base/status.h"
#include "common/base/version.h"
#include "common/cluster/known_devices.h"
#include "common/config/job_file.h"
#include "common/profile/profile_serde.h"
#include "takt/v1/cluster_file.pb.h"

namespace takt::cluster {
namespace {

using Workers = v1::ClusterFile::Workers;

constexpr char kCpu[] = "cpu";
constexpr std::int64_t kMostWorkers = 1'000'000;
constexpr std::int64_t kMostMemoryBytes = std::int64_t{1} << 50;
constexpr std::size_t kMostErrors = 20;

config::JobFileOptions FileOptions(const std::string& name) {
  return {.name = name,
          .rules = {.what = "cluster file", .max_bytes = kMostFileBytes, .max_nodes = 2'000'000}};
}

// The rules of cluster files. A value that is not given breaks none of these.
class Rules final : public FieldRules {
 public:
  void Count(const std::string& field, bool given, std::int64_t value, std::int64_t most) {
    Check(!given || (value >= 1 && value <= most),
          {.field = field,
           .value = absl::StrCat(value),
           .rule = absl::StrCat("must be between 1 and ", most),
           .fix = "correct it, or leave it out"});
  }
  void Rates(const std::string& field, const v1::ClusterFile::Rates& rates) {
    Rate(field + ".f32", rates.f32());
    Rate(field + ".bf16", rates.bf16());
    Rate(field + ".fp8", rates.fp8());
  }

 private:
  void Rate(const std::string& field, double value) {
    Check(value == 0 || (value >= 1e6 && value <= 1e21),
          {.field = field,
           .value = absl::StrCat(value),
           .rule = "must be FLOPs per second, between 1e+06 and 1e+21, or 0 if it is not known",
           .fix = "correct it"});
  }
};

std::string KnownNames() {
  std::string names = kCpu;
  for (const KnownDevice& device : KnownDevices())
    absl::StrAppend(&names, ", ", std::string(device.name));
  return names;
}

void CheckDevice(const Workers& workers, const std::string& path, Rules& rules) {
  const std::string& device = workers.device();
  if (device.empty()) {
    rules.Check(false, {.field = path + ".device",
                        .rule = "is missing",
                        .fix = absl::StrCat("use one of ", KnownNames(),
                                            ", or another name and its flops_per_second")});
    return;
  }
  const v1::ClusterFile::Rates& rates = workers.flops_per_second();
  const bool known = device == kCpu || FindKnownDevice(device) != nullptr;
  rules.Check(
      known || (rates.has_f32() && rates.has_bf16()),
      {.field = path + ".device",
       .value = absl::Utf8SafeCHexEscape(std::string(FirstBytes(device, 60))),
       .rule = absl::StrCat("must be one of ", KnownNames(), ", if its rates are not given"),
       .fix = "use one of these, or give flops_per_second: {f32: ..., bf16: ...}"});
}

void CheckHost(const Workers& workers, const std::string& path, Rules& rules) {
  const v1::ClusterFile::Host& host = workers.host();
  rules.Check(!host.has_name() || !host.name().empty(), {.field = path + ".host.name",
                                                         .rule = "must not be empty",
                                                         .fix = "name the host, or leave it out"});
  rules.Check(!host.has_name() || !workers.has_per_host(),
              {.field = path + ".per_host",
               .value = absl::StrCat(workers.per_host()),
               .rule = "has no effect where host.name is given: all these workers are on that host",
               .fix = "remove one of them"});
  rules.Count(path + ".host.cores", host.has_cores(), host.cores(), 1 << 20);
  rules.Count(path + ".host.threads", host.has_threads(), host.threads(), config::kMaxThreads);
  rules.Count(path + ".host.memory_bytes", host.has_memory_bytes(), host.memory_bytes(),
              kMostMemoryBytes);
  rules.Rates(path + ".host.flops_per_second", host.flops_per_second());
  if (workers.device() != kCpu) return;
  const auto check_not_given = [&](const char* field, bool given) {
    rules.Check(!given, {.field = absl::StrCat(path, ".host.", field),
                         .rule = "is for workers with a GPU",
                         .fix = absl::StrCat("write it as ", path, ".", field)});
  };
  check_not_given("memory_bytes", host.has_memory_bytes());
  check_not_given("flops_per_second", host.has_flops_per_second());
  rules.Check(workers.uuid().empty(), {.field = path + ".uuid",
                                       .rule = "names a GPU, and these workers have none",
                                       .fix = "remove it"});
}

std::vector<FieldError> CheckWorkers(const Workers& workers, const std::string& path) {
  Rules rules;
  rules.Count(path + ".count", workers.has_count(), workers.count(), kMostWorkers);
  rules.Count(path + ".per_host", workers.has_per_host(), workers.per_host(), kMostWorkers);
  CheckDevice(workers, path, rules);
  rules.Count(path + ".memory_bytes", workers.has_memory_bytes(), workers.memory_bytes(),
              kMostMemoryBytes);
  rules.Rates(path + ".flops_per_second", workers.flops_per_second());
  CheckHost(workers, path, rules);
  return rules.Take();
}

int CountOf(const Workers& workers) { return workers.has_count() ? workers.count() : 1; }

void CheckLink(const std::string& path, const v1::ClusterFile::Link& link, FieldRules& rules) {
  const double latency = link.latency_seconds(), rate = link.bytes_per_second();
  rules.Check(link.has_latency_seconds() && latency >= 0 && latency <= 3600,
              {.field = path + ".latency_seconds",
               .value = link.has_latency_seconds() ? absl::StrCat(latency) : "",
               .rule = link.has_latency_seconds() ? "must be between 0 and 3600" : "is missing",
               .fix = "give the seconds that a message without bytes takes"});
  rules.Check(link.has_bytes_per_second() && rate >= 1 && rate <= 1e18,
              {.field = path + ".bytes_per_second",
               .value = link.has_bytes_per_second() ? absl::StrCat(rate) : "",
               .rule = link.has_bytes_per_second() ? "must be between 1 and 1e+18" : "is missing",
               .fix = "give the rate of a long message"});
}

// Returns the first errors of the file.
std::vector<FieldError> CheckFile(const v1::ClusterFile& file) {
  FieldRules rules;
  rules.Check(
      file.workers_size() > 0,
      {.field = "workers", .rule = "is missing", .fix = "e.g. workers: {count: 8, device: H100}"});
  if (file.links().has_same_host()) CheckLink("links.same_host", file.links().same_host(), rules);
  if (file.links().has_between_hosts())
    CheckLink("links.between_hosts", file.links().between_hosts(), rules);
  rules.Check(!file.has_profile() || file.profile().program_version() == kTaktVersion,
              {.field = "profile.program_version",
               .value = absl::Utf8SafeCHexEscape(
                   std::string(FirstBytes(file.profile().program_version(), 60))),
               .rule = absl::StrCat("must be ", kTaktVersion,
                                    ": what another version of the program measured does not hold"),
               .fix = "describe the cluster again, or remove the profile"});
  std::vector<FieldError> errors = rules.Take();
  std::int64_t total = 0;
  for (int i = 0; i < file.workers_size() && errors.size() < kMostErrors; ++i) {
    for (FieldError& error : CheckWorkers(file.workers(i), absl::StrCat("workers[", i, "]")))
      errors.push_back(std::move(error));
    total += CountOf(file.workers(i));
  }
  if (errors.empty() && total > kMostWorkers) {
    errors.push_back({.field = "workers",
                      .value = absl::StrCat(total, " in all"),
                      .rule = absl::StrCat("must be at most ", kMostWorkers),
                      .fix = "correct the counts"});
  }
  return errors;
}

MatmulRates RatesOf(const v1::ClusterFile::Rates& given, const MatmulRates& usual) {
  return {.f32 = given.has_f32() ? given.f32() : usual.f32,
          .bf16 = given.has_bf16() ? given.bf16() : usual.bf16,
          .fp8 = given.has_fp8() ? given.fp8() : usual.fp8};
}

// Returns what each worker of the entry offers. What the file does not name has no name yet.
plan::WorkerOffer OfferOf(const Workers& workers) {
  const v1::ClusterFile::Host& host = workers.host();
  plan::WorkerOffer offer{.host = host.name(),
                          .processor = host.processor(),
                          .cores = host.has_cores() ? host.cores() : 1,
                          .threads = host.threads()};
  if (workers.device() == kCpu) {
    offer.memory_bytes = workers.memory_bytes();
    offer.matmul_rates = RatesOf(workers.flops_per_second(), {});
    return offer;
  }
  offer.memory_bytes = host.memory_bytes();
  offer.matmul_rates = RatesOf(host.flops_per_second(), {});
  const KnownDevice* known = FindKnownDevice(workers.device());
  const std::int64_t usual_bytes = known != nullptr ? known->memory_bytes : 0;
  const std::string_view capability = known != nullptr ? known->compute_capability : "";
  const MatmulRates usual_rates = known != nullptr ? AchievableRates(*known) : MatmulRates();
  offer.device =
      Device{.name = workers.device(),
             .uuid = workers.uuid(),
             .memory_bytes = workers.has_memory_bytes() ? workers.memory_bytes() : usual_bytes,
             .compute_capability = std::string(capability),
             .matmul_rates = RatesOf(workers.flops_per_second(), usual_rates),
             .shared = !workers.uuid().empty()};
  return offer;
}

// Names what the file does not name.
class FreshNames {
 public:
  FreshNames(const char* prefix, std::set<std::string> taken)
      : prefix_(prefix), taken_(std::move(taken)) {}

  std::string Next() {
    std::string name;
    do {
      name = absl::StrCat(prefix_, ++count_);
    } while (taken_.contains(name));
    return name;
  }

 private:
  const char* const prefix_;
  const std::set<std::string> taken_;
  int count_ = 0;
};

std::vector<plan::WorkerOffer> OffersOf(const v1::ClusterFile& file) {
  std::set<std::string> named_hosts, named_gpus;
  std::size_t total = 0;
  for (const Workers& workers : file.workers()) {
    named_hosts.insert(workers.host().name());
    named_gpus.insert(workers.uuid());
    total += CountOf(workers);
  }
  FreshNames hosts("host-", std::move(named_hosts)), gpus("gpu-", std::move(named_gpus));
  std::vector<plan::WorkerOffer> offers;
  offers.reserve(total);
  for (const Workers& workers : file.workers()) {
    const plan::WorkerOffer pattern = OfferOf(workers);
    const int per_host = workers.has_per_host() ? workers.per_host() : 1;
    std::string host = pattern.host;
    for (int i = 0; i < CountOf(workers); ++i) {
      if (pattern.host.empty() && i % per_host == 0) host = hosts.Next();
      plan::WorkerOffer& offer = offers.emplace_back(pattern);
      offer.host = host;
      if (offer.device && offer.device->uuid.empty()) offer.device->uuid = gpus.Next();
    }
  }
  return offers;
}

Link ReadLink(const v1::ClusterFile::Link& link) {
  return {.latency_seconds = link.latency_seconds(), .bytes_per_second = link.bytes_per_second()};
}

absl::StatusOr<Cluster> FromProto(const v1::ClusterFile& file) {
  std::vector<FieldError> errors = CheckFile(file);
  if (!errors.empty()) return InvalidFields(std::move(errors));
  Cluster cluster{.offers = OffersOf(file)};
  if (file.links().has_same_host()) cluster.same_host = ReadLink(file.links().same_host());
  if (file.links().has_between_hosts())
    cluster.between_hosts = ReadLink(file.links().between_hosts());
  if (!file.has_profile()) return cluster;
  absl::StatusOr<profile::Profile> profile = profile::FromProto(file.profile());
  if (!profile.ok()) {
    return InvalidField({.field = "profile",
                         .rule = std::string(profile.status().message()),
                         .fix = "describe the cluster again, or remove the profile"});
  }
  cluster.profile = std::make_shared<const profile::Profile>(*std::move(profile));
  return cluster;
}

void Write(const MatmulRates& rates, v1::ClusterFile::Rates& out) {
  out.set_f32(rates.f32);
  out.set_bf16(rates.bf16);
  if (rates.fp8 > 0) out.set_fp8(rates.fp8);
}

// Returns the entry of one such worker, without names and counts.
Workers EntryOf(const plan::WorkerOffer& offer) {
  Workers entry;
  const bool has_rates = offer.matmul_rates != MatmulRates();
  if (!offer.processor.empty()) entry.mutable_host()->set_processor(offer.processor);
  if (offer.cores > 1) entry.mutable_host()->set_cores(offer.cores);
  if (offer.threads > 0) entry.mutable_host()->set_threads(offer.threads);
  if (!offer.device) {
    entry.set_device(kCpu);
    if (offer.memory_bytes > 0) entry.set_memory_bytes(offer.memory_bytes);
    if (has_rates) Write(offer.matmul_rates, *entry.mutable_flops_per_second());
    return entry;
  }
  entry.set_device(offer.device->name);
  if (offer.device->memory_bytes > 0) entry.set_memory_bytes(offer.device->memory_bytes);
  Write(offer.device->matmul_rates, *entry.mutable_flops_per_second());
  if (offer.memory_bytes > 0) entry.mutable_host()->set_memory_bytes(offer.memory_bytes);
  if (has_rates) Write(offer.matmul_rates, *entry.mutable_host()->mutable_flops_per_second());
  return entry;
}

// One worker: its entry, and the GPU that it shares with others, if it does.
struct Described {
  Workers entry;
  std::string key;  // equal for equal workers
  std::string shared_gpu;
};

// Returns the workers of each host. Hosts are in the order of their first workers.
std::vector<std::pair<std::string, std::vector<Described>>> ByHost(const Cluster& cluster) {
  std::map<std::string_view, int> workers_of_gpu;
  for (const plan::WorkerOffer& offer : cluster.offers) {
    if (offer.device) ++workers_of_gpu[offer.device->uuid];
  }
  std::map<std::string_view, std::size_t> index_of;
  std::vector<std::pair<std::string, std::vector<Described>>> hosts;
  for (const plan::WorkerOffer& offer : cluster.offers) {
    const auto [index, is_new] = index_of.try_emplace(offer.host, hosts.size());
    if (is_new) hosts.push_back({offer.host, {}});
    const bool shares = offer.device && workers_of_gpu[offer.device->uuid] > 1;
    Described worker{.entry = EntryOf(offer), .shared_gpu = shares ? offer.device->uuid : ""};
    worker.key = worker.entry.SerializeAsString();
    hosts[index->second].second.push_back(std::move(worker));
  }
  return hosts;
}

// Returns whether the workers of a host are all alike and share no GPU, so that nothing needs a
// name.
bool AreAlike(const std::vector<Described>& workers) {
  for (const Described& worker : workers) {
    if (worker.key != workers.front().key || !worker.shared_gpu.empty()) return false;
  }
  return true;
}

v1::ClusterFile ToProto(const Cluster& cluster) {
  v1::ClusterFile file;
  std::map<std::vector<std::string>, int> index_of;  // of entries, by what they have in common
  const auto entry_of = [&](std::vector<std::string> key, const Workers& worker) -> Workers& {
    const auto [index, is_new] = index_of.try_emplace(std::move(key), file.workers_size());
    if (is_new) *file.add_workers() = worker;
    return *file.mutable_workers(index->second);
  };
  for (const auto& [name, workers] : ByHost(cluster)) {
    const int count = static_cast<int>(workers.size());
    if (AreAlike(workers)) {
      Workers& entry = entry_of({workers[0].key, absl::StrCat(count)}, workers[0].entry);
      entry.set_count(entry.count() + count);
      entry.set_per_host(count);
      continue;
    }
    for (const Described& worker : workers) {
      Workers& entry = entry_of({worker.key, worker.shared_gpu, name}, worker.entry);
      entry.set_count(entry.count() + 1);
      entry.mutable_host()->set_name(name);
      entry.set_uuid(worker.shared_gpu);
    }
  }
  const auto write_link = [](const Link& link, v1::ClusterFile::Link& out) {
    out.set_latency_seconds(link.latency_seconds);
    out.set_bytes_per_second(link.bytes_per_second);
  };
  if (cluster.same_host) write_link(*cluster.same_host, *file.mutable_links()->mutable_same_host());
  if (cluster.between_hosts)
    write_link(*cluster.between_hosts, *file.mutable_links()->mutable_between_hosts());
  if (cluster.profile != nullptr) {
    *file.mutable_profile() = profile::ToProto(*cluster.profile);
    // They name hosts, which the file does not, and no plan for the file depends on them.
    file.mutable_profile()->clear_links();
  }
  return file;
}

}  // namespace

absl::StatusOr<Cluster> ParseCluster(std::string_view text, const std::string& name) {
  const config::JobFileOptions options = FileOptions(name);
  v1::ClusterFile file;
  RETURN_IF_ERROR(config::ParseMessageFile(text, options, file));
  absl::StatusOr<Cluster> cluster = FromProto(file);
  if (!cluster.ok()) return config::LocateErrors(cluster.status(), text, options);
  return cluster;
}

std::string FormatCluster(const Cluster& cluster) {
  return absl::StrCat("# takt plan JOB.yaml --cluster THIS_FILE plans for these workers.\n",
                      config::FormatMessageYaml(ToProto(cluster)));
}

std::string FormatClusterJson(const Cluster& cluster) {
  return config::FormatMessageJson(ToProto(cluster));
}

}  // namespace takt::cluster
