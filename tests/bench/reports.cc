// SPDX-License-Identifier: Apache-2.0
// Measures what the step reports of many workers cost a coordinator on one core. They take the real
// way from gRPC to the disk.
#include <fcntl.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "common/base/status.h"
#include "tests/bench/command.h"
#include "tests/bench/commands.h"
#include "tests/bench/process_usage.h"
#include "tests/bench/statistics.h"
#include "tests/bench/table.h"
#include "tests/testing/cluster.h"
#include "tests/testing/worker_swarm.h"

namespace takt::bench::reports_command {
namespace {

using testing::WorkerSwarm;

constexpr absl::Duration kPatience = absl::Minutes(5);

// How much later than the disk allows 99 of 100 reports may be durable, and what the coordinator
// may take for all workers.
double MostDurableSeconds(int workers) { return workers <= 1024 ? 0.050 : 0.250; }
constexpr std::int64_t kMostBytes = std::int64_t{4} << 30;

struct Options : CommonOptions {
  std::vector<int> workers = {1024};
  int workers_per_host = 0;
  int ranks = 8, seconds = 10;
  std::vector<double> rates = {1, 4};
  bool traces = true;
  bool tls = false;
};

// Processes that start while this object exists run on one core. Afterwards this process runs on
// the other ones, if there are any.
class OneCore {
 public:
  OneCore() : others_(AllCores()) {
    int core = CPU_SETSIZE - 1;
    while (core > 0 && !CPU_ISSET(core, &others_)) --core;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    sched_setaffinity(0, sizeof one, &one);
    if (CPU_COUNT(&others_) > 1) CPU_CLR(core, &others_);
  }
  ~OneCore() { sched_setaffinity(0, sizeof others_, &others_); }

 private:
  // Returns the cores that this process had when it started.
  static cpu_set_t AllCores() {
    static const cpu_set_t all = [] {
      cpu_set_t cores;
      CPU_ZERO(&cores);
      sched_getaffinity(0, sizeof cores, &cores);
      return cores;
    }();
    return all;
  }

  cpu_set_t others_;
};

// Each worker is a connection, here and in the coordinator, which inherits the limit.
void AllowAllDescriptors() {
  rlimit descriptors{};
  getrlimit(RLIMIT_NOFILE, &descriptors);
  descriptors.rlim_cur = descriptors.rlim_max;
  setrlimit(RLIMIT_NOFILE, &descriptors);
}

std::unique_ptr<testing::Cluster> StartCoordinator(bool tls) {
  using Network = testing::Cluster::Network;
  const OneCore pinned;
  return std::make_unique<testing::Cluster>(0, tls ? Network::kTls : Network::kSocketFile);
}

double Quantile(const std::vector<double>& sorted, double q) {
  if (sorted.empty()) return 0;
  return sorted[static_cast<std::size_t>(q * static_cast<double>(sorted.size() - 1))];
}

// Returns the 99th percentile of the time that the disk takes to make a page durable, without the
// coordinator. No report can be durable sooner.
absl::StatusOr<double> SyncSeconds(const std::string& directory) {
  constexpr int kSyncs = 200;
  const std::string path = directory + "/sync";
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (file < 0) return absl::UnavailableError(absl::StrCat("cannot write ", path));
  const std::string page(4096, 'x');
  std::vector<double> seconds;
  bool done = true;
  for (int i = 0; i < kSyncs && done; ++i) {
    const absl::Time start = absl::Now();
    done = write(file, page.data(), page.size()) == std::ssize(page) && fdatasync(file) == 0;
    seconds.push_back(absl::ToDoubleSeconds(absl::Now() - start));
  }
  close(file);
  if (!done) return absl::UnavailableError(absl::StrCat("cannot write ", path));
  std::sort(seconds.begin(), seconds.end());
  return Quantile(seconds, 0.99);
}

struct Row {
  double rate = 0;  // steps per second of each worker
  double offered = 0, acknowledged = 0, core_share = 0, workers_core_share = 0;
  double cpu_per_report = 0;  // seconds of the coordinator
  double ack_p50 = 0, ack_p99 = 0;
};

// The jobs step one after the other, evenly over each period, each with all its workers, as their
// schedule lets them end a step together.
Row Measure(WorkerSwarm& swarm, pid_t coordinator, const Options& options, double rate) {
  const std::vector<std::vector<int>> jobs = swarm.WorkersOfJobs();
  const std::int64_t num_jobs = std::ssize(jobs);
  swarm.TakeAckSeconds();
  const WorkerSwarm::Counts before = swarm.counts();
  const double cpu_before = CpuSeconds(coordinator), own_before = CpuSeconds(getpid());
  const absl::Time start = absl::Now();
  const auto num_steps = static_cast<std::int64_t>(rate * options.seconds);
  for (std::int64_t i = 0; i < num_steps * num_jobs; ++i) {
    const double periods = static_cast<double>(i) / static_cast<double>(num_jobs);
    const absl::Time due = start + absl::Seconds(periods / rate);
    if (due > absl::Now()) absl::SleepFor(due - absl::Now());
    for (const int worker : jobs[static_cast<std::size_t>(i % num_jobs)]) swarm.Step(worker);
  }
  const double seconds = absl::ToDoubleSeconds(absl::Now() - start);
  const WorkerSwarm::Counts after = swarm.counts();
  const double cpu = CpuSeconds(coordinator) - cpu_before;
  const double own_cpu = CpuSeconds(getpid()) - own_before;
  const auto reported = static_cast<double>(after.reported - before.reported);
  swarm.AwaitAcknowledged(absl::Seconds(30));
  std::vector<double> acks = swarm.TakeAckSeconds();
  std::sort(acks.begin(), acks.end());
  return {.rate = rate,
          .offered = reported / seconds,
          .acknowledged = static_cast<double>(after.acknowledged - before.acknowledged) / seconds,
          .core_share = cpu / seconds,
          .workers_core_share = own_cpu / seconds,
          .cpu_per_report = reported > 0 ? cpu / reported : 0,
          .ack_p50 = Quantile(acks, 0.5),
          .ack_p99 = Quantile(acks, 0.99)};
}

std::string JobFile(const Options& options, int number, std::int64_t steps) {
  testing::EmulatedJob job{.name = absl::StrCat("job-", number),
                           .pipeline = options.ranks,
                           .microbatches = 2 * options.ranks,
                           .steps = steps};
  return job.Yaml();
}

// Returns for how long a tenth of the workers is away that loses its connections at one moment.
absl::StatusOr<double> MeasureReturn(WorkerSwarm& swarm, int num_workers) {
  if (!swarm.AwaitAcknowledged(kPatience))
    return absl::DeadlineExceededError("reports were not acknowledged");
  const absl::Time start = absl::Now();
  swarm.Reconnect(std::max(1, num_workers / 10));
  if (!swarm.AwaitAttached(kPatience) || !swarm.AwaitTraining(absl::ZeroDuration()))
    return absl::InternalError("a tenth of the workers left and did not return to its jobs");
  return absl::ToDoubleSeconds(absl::Now() - start);
}

void PrintHead(const Options& options, int workers) {
  if (options.json()) return;
  const std::string hosts = options.workers_per_host > 0
                                ? absl::StrCat(" on ", workers / options.workers_per_host, " hosts")
                                : "";
  absl::PrintF("%d workers%s, %d jobs of %d ranks, %s%s; the coordinator on one core\n", workers,
               hosts, workers / options.ranks, options.ranks,
               options.traces ? "reports and traces" : "reports", options.tls ? ", TLS" : "");
}

// Prints a row for each number of workers and rate.
Table NewTable(bool json) {
  return Table(json, {{"workers", "workers"},
                      {"steps/s each", "steps_per_second", 0, 1},
                      {"reports/s", "reports_per_second"},
                      {"acknowledged/s", "acknowledged_per_second"},
                      {"core used %", "core_share", 0, 1, 100},
                      {"ms to durable: median", "durable_seconds_p50", 0, 1, 1e3},
                      {"p99", "durable_seconds_p99", 6, 1, 1e3},
                      {"p99 of the disk", "sync_seconds_p99", 0, 1, 1e3},
                      {"limit", "limit", 6, 1, 1e3},
                      {"us of CPU a report", "cpu_seconds_per_report", 0, 1, 1e6},
                      {"core of workers %", "workers_core_share", 0, 1, 100}});
}

// The costs of one number of workers, beside the rows of its rates.
struct Size {
  int workers = 0;
  double cpu = 0;             // seconds of the coordinator a second, at the first rate
  double commit_seconds = 0;  // to durable, of 99 of 100 reports, at the first rate
  double reattach_seconds = 0;
  std::int64_t coordinator_bytes = 0, lost_streams = 0;
};

// Returns the steps of each job. One step is never reported, so no job ends while it is measured.
std::int64_t StepsOf(const Options& options) {
  std::int64_t steps = 1;
  for (const double rate : options.rates)
    steps += static_cast<std::int64_t>(rate * options.seconds);
  return steps;
}

absl::Status StartJobs(testing::Cluster& cluster, WorkerSwarm& swarm, const Options& options,
                       int workers) {
  if (!swarm.AwaitAttached(kPatience))
    return absl::DeadlineExceededError("not all workers attached in time");
  for (int job = 0; job < workers / options.ranks; ++job) {
    cluster.Submit(JobFile(options, job, StepsOf(options)));
  }
  if (!swarm.AwaitTraining(kPatience))
    return absl::DeadlineExceededError("not all jobs started in time");
  return absl::OkStatus();
}

absl::StatusOr<Size> MeasureSize(const Options& options, int workers, Table& table) {
  const std::unique_ptr<testing::Cluster> cluster = StartCoordinator(options.tls);
  const auto swarm = WorkerSwarm::Start({.coordinator = cluster->address(),
                                         .authority = options.tls ? cluster->authority() : "",
                                         .num_workers = workers,
                                         .workers_per_host = options.workers_per_host,
                                         .steps = StepsOf(options),
                                         .traces = options.traces});
  RETURN_IF_ERROR(StartJobs(*cluster, *swarm, options, workers));
  PrintHead(options, workers);
  Size size{.workers = workers};
  for (const double rate : options.rates) {
    ASSIGN_OR_RETURN(const double sync, SyncSeconds(cluster->directory()));
    const Row row = Measure(*swarm, cluster->coordinator().pid(), options, rate);
    if (size.cpu == 0) {
      size.cpu = row.core_share;
      size.commit_seconds = row.ack_p99;
    }
    const double limit = sync + MostDurableSeconds(workers);
    table.Add({{"workers", workers},
               {"steps_per_second", row.rate},
               {"reports_per_second", row.offered},
               {"acknowledged_per_second", row.acknowledged},
               {"core_share", row.core_share},
               {"durable_seconds_p50", row.ack_p50},
               {"durable_seconds_p99", row.ack_p99},
               {"sync_seconds_p99", sync},
               {"limit", limit},
               {"ratio", row.ack_p99 / limit},
               {"holds", row.ack_p99 <= limit},
               {"cpu_seconds_per_report", row.cpu_per_report},
               {"workers_core_share", row.workers_core_share}});
  }
  ASSIGN_OR_RETURN(size.reattach_seconds, MeasureReturn(*swarm, workers));
  ASSIGN_OR_RETURN(size.coordinator_bytes, PeakRssBytes(cluster->coordinator().pid()));
  size.lost_streams = swarm->counts().lost_streams;
  if (!options.json()) {
    absl::PrintF(
        "a tenth of the workers left and was back after %.2f s; the coordinator took %d MB\n",
        size.reattach_seconds, size.coordinator_bytes / 1'000'000);
  }
  return size;
}

// Returns the exponents with which the coordinator's CPU and memory, and the time to durable of 99
// of 100 reports, grow with the workers.
nlohmann::json ExponentsOf(const std::vector<Size>& sizes) {
  std::vector<std::pair<double, double>> cpu, memory, commit;
  for (const Size& size : sizes) {
    cpu.emplace_back(size.workers, size.cpu);
    memory.emplace_back(size.workers, static_cast<double>(size.coordinator_bytes));
    commit.emplace_back(size.workers, size.commit_seconds);
  }
  return {{"cpu", Exponent(cpu)}, {"memory", Exponent(memory)}, {"commit", Exponent(commit)}};
}

absl::Status Run(const Options& options) {
  AllowAllDescriptors();
  for (const int workers : options.workers) {
    const int share = std::max(1, options.workers_per_host);
    if (workers % options.ranks != 0 || workers % share != 0) {
      return absl::InvalidArgumentError(
          "--workers must be multiples of --ranks and of --workers-per-host");
    }
  }
  Table table = NewTable(options.json());
  std::vector<Size> sizes;
  std::int64_t lost_streams = 0;
  for (const int workers : options.workers) {
    ASSIGN_OR_RETURN(const Size size, MeasureSize(options, workers, table));
    lost_streams += size.lost_streams;
    sizes.push_back(size);
  }
  const nlohmann::json exponents = ExponentsOf(sizes);
  if (!options.json() && sizes.size() > 1) {
    absl::PrintF("exponents: cpu %.2f memory %.2f commit %.2f\n", exponents["cpu"].get<double>(),
                 exponents["memory"].get<double>(), exponents["commit"].get<double>());
  }
  const Size& last = sizes.back();
  table.End({{"workers", last.workers},
             {"workers_per_host", options.workers_per_host},
             {"reattach_seconds", last.reattach_seconds},
             {"coordinator_bytes", last.coordinator_bytes},
             {"coordinator_bytes_limit", kMostBytes},
             {"jobs", last.workers / options.ranks},
             {"traces", options.traces},
             {"tls", options.tls},
             {"exponents", exponents},
             {"lost_streams", lost_streams}});
  if (lost_streams == 0) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(lost_streams, " streams were lost"));
}

}  // namespace

void Add(CLI::App& app, absl::Status& result) {
  AddCommand<Options>(
      app, result, "reports", "Step reports of many workers, taken by a coordinator on one core",
      [](CLI::App& command, Options& options) {
        command.add_option("--workers", options.workers, "Workers, each number in turn")
            ->delimiter(',')
            ->check(CLI::Range(1, 10'000));
        command
            .add_option("--workers-per-host", options.workers_per_host,
                        "Workers that share the connection of their host; 0: each has its own")
            ->check(CLI::Range(0, 256));
        command.add_option("--ranks", options.ranks, "Ranks of each job")->check(CLI::Range(1, 64));
        command.add_option("--rates", options.rates, "Steps a second of each worker")
            ->delimiter(',')
            ->check(CLI::PositiveNumber);
        command.add_option("--seconds", options.seconds, "For how long, each rate")
            ->check(CLI::Range(1, 3600));
        command.add_flag("!--no-traces", options.traces, "Reports alone");
        command.add_flag("--tls", options.tls,
                         "Over TCP with mutual TLS, each worker with a certificate of its own");
      },
      Run);
}

}  // namespace takt::bench::reports_command
