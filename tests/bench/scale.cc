// SPDX-License-Identifier: Apache-2.0
// Measures how one job of many ranks starts and stops, and how its workers come back after the
// coordinator was killed and after a tenth of them lost their connections. The ranks are emulated
// in this process: each attaches, takes its assignment and meets its neighbours through the
// rendezvous, as a real one does. Only a coordinator of linear algorithms keeps the exponents at 1.
#include <sys/resource.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
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

namespace takt::bench::scale_command {
namespace {

using testing::WorkerSwarm;

constexpr absl::Duration kPatience = absl::Minutes(5);
constexpr absl::Duration kProcessPatience = absl::Minutes(20);
constexpr char kJob[] = "wide";

// The limits of a job of any size up to the largest one.
constexpr double kMostLaunchSeconds = 60, kMostRestartSeconds = 60, kMostCallSeconds = 1;
constexpr std::int64_t kMostAssignmentBytes = 64 << 10;
constexpr double kMostExponent = 1.1;
double MostStopSeconds(int ranks) { return ranks <= 1024 ? 0.5 : 1; }

struct Options : CommonOptions {
  std::vector<int> ranks = {64, 256, 1024};
  int microbatches = 8;
  int processes = 0;
  int workers_per_host = 0;
  bool tls = false;
};

struct Row {
  int ranks = 0, pipeline = 0;
  double attach_seconds = 0;  // until all workers are attached
  double launch_seconds = 0;  // from the submission until all ranks train
  // From the start of a coordinator that was killed until all ranks are attached, and meanwhile the
  // time of other calls, once it answers.
  double restart_seconds = 0, call_seconds_p99 = 0;
  double reattach_seconds = 0;  // until a tenth of the ranks is back
  double stop_seconds = 0;      // from the failure of one rank until all are told
  std::int64_t assignment_bytes = 0, coordinator_bytes = 0;

  bool holds() const {
    return launch_seconds <= kMostLaunchSeconds && restart_seconds <= kMostRestartSeconds &&
           call_seconds_p99 <= kMostCallSeconds && stop_seconds <= MostStopSeconds(ranks) &&
           assignment_bytes <= kMostAssignmentBytes;
  }
};

nlohmann::json JsonOf(const Row& row) {
  return {{"ranks", row.ranks},
          {"pipeline", row.pipeline},
          {"attach_seconds", row.attach_seconds},
          {"launch_seconds", row.launch_seconds},
          {"restart_seconds", row.restart_seconds},
          {"call_seconds_p99", row.call_seconds_p99},
          {"reattach_seconds", row.reattach_seconds},
          {"stop_seconds", row.stop_seconds},
          {"assignment_bytes", row.assignment_bytes},
          {"coordinator_bytes", row.coordinator_bytes},
          {"limit",
           {{"launch_seconds", kMostLaunchSeconds},
            {"restart_seconds", kMostRestartSeconds},
            {"call_seconds_p99", kMostCallSeconds},
            {"stop_seconds", MostStopSeconds(row.ranks)},
            {"assignment_bytes", kMostAssignmentBytes}}},
          {"holds", row.holds()}};
}

double SecondsSince(absl::Time start) { return absl::ToDoubleSeconds(absl::Now() - start); }

double ExponentOf(const std::vector<Row>& rows, double Row::*time) {
  std::vector<std::pair<double, double>> points;
  for (const Row& row : rows) points.emplace_back(row.ranks, row.*time);
  return Exponent(points);
}

// Returns the exponents of all curves, by name.
nlohmann::json ExponentsOf(const std::vector<Row>& rows) {
  return {{"attach", ExponentOf(rows, &Row::attach_seconds)},
          {"launch", ExponentOf(rows, &Row::launch_seconds)},
          {"restart", ExponentOf(rows, &Row::restart_seconds)},
          {"reattach", ExponentOf(rows, &Row::reattach_seconds)},
          {"stop", ExponentOf(rows, &Row::stop_seconds)}};
}

// The mesh is as square as a power of two on its first axis can make it.
int PipelineOf(int ranks) {
  int pipeline = 1 << (std::bit_width(static_cast<unsigned>(ranks)) / 2);
  while (ranks % pipeline != 0) pipeline /= 2;
  return pipeline;
}

// Waits until all are attached. Returns the 99th percentile of the time that a client's calls take
// meanwhile, from the first one that is answered.
absl::StatusOr<double> CallUntilAttached(testing::Cluster& cluster, WorkerSwarm& swarm) {
  std::vector<double> calls;
  const absl::Time deadline = absl::Now() + kPatience;
  cluster.Job(kJob);
  while (!swarm.AwaitAttached(absl::ZeroDuration())) {
    if (absl::Now() > deadline) return absl::DeadlineExceededError("workers do not come back");
    const absl::Time start = absl::Now();
    cluster.Job(kJob);
    calls.push_back(SecondsSince(start));
    absl::SleepFor(absl::Milliseconds(20));
  }
  std::sort(calls.begin(), calls.end());
  return calls.empty() ? 0 : calls[(calls.size() - 1) * 99 / 100];
}

// The coordinator is killed, and then a tenth of the workers lose their connections. The job must
// keep training as if nothing had happened.
absl::Status MeasureReturns(testing::Cluster& cluster, WorkerSwarm& swarm, Row& row) {
  cluster.Kill(cluster.coordinator());
  absl::Time start = absl::Now();
  cluster.StartCoordinator();
  swarm.Reconnect(row.ranks);
  ASSIGN_OR_RETURN(row.call_seconds_p99, CallUntilAttached(cluster, swarm));
  row.restart_seconds = SecondsSince(start);
  ASSIGN_OR_RETURN(row.coordinator_bytes, PeakRssBytes(cluster.coordinator().pid()));
  start = absl::Now();
  swarm.Reconnect(std::max(1, row.ranks / 10));
  if (!swarm.AwaitAttached(kPatience))
    return absl::DeadlineExceededError("a tenth of the workers do not come back");
  row.reattach_seconds = SecondsSince(start);
  const v1::Job job = cluster.Job(kJob);
  if (job.state() == v1::JOB_STATE_RUNNING && swarm.AwaitTraining(absl::ZeroDuration()))
    return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("the job of ", row.ranks, " ranks did not train on: ", job.reason()));
}

absl::StatusOr<Row> Measure(const Options& options, int ranks) {
  using Network = testing::Cluster::Network;
  if (options.workers_per_host > 0 && ranks % options.workers_per_host != 0)
    return absl::InvalidArgumentError("--ranks must be multiples of --workers-per-host");
  testing::Cluster cluster(0, options.tls ? Network::kTls : Network::kSocketFile);
  Row row{.ranks = ranks, .pipeline = PipelineOf(ranks)};
  absl::Time start = absl::Now();
  const auto swarm = WorkerSwarm::Start({.coordinator = cluster.address(),
                                         .authority = options.tls ? cluster.authority() : "",
                                         .num_workers = ranks,
                                         .workers_per_host = options.workers_per_host,
                                         .traces = false,
                                         .meets = true});
  if (!swarm->AwaitAttached(kPatience))
    return absl::DeadlineExceededError("not all workers attached in time");
  row.attach_seconds = SecondsSince(start);
  testing::EmulatedJob job{.name = kJob,
                           .pipeline = row.pipeline,
                           .data = ranks / row.pipeline,
                           .microbatches = options.microbatches};
  start = absl::Now();
  cluster.Submit(job.Yaml());
  if (!swarm->AwaitTraining(kPatience))
    return absl::DeadlineExceededError(absl::StrCat("a job of ", ranks, " ranks did not start"));
  row.launch_seconds = SecondsSince(start);
  RETURN_IF_ERROR(MeasureReturns(cluster, *swarm, row));
  start = absl::Now();
  swarm->Fail(0);
  if (!swarm->AwaitStopped(kPatience))
    return absl::DeadlineExceededError(absl::StrCat("a job of ", ranks, " ranks did not stop"));
  row.stop_seconds = SecondsSince(start);
  const WorkerSwarm::Counts counts = swarm->counts();
  row.assignment_bytes = counts.largest_assignment_bytes;
  if (counts.lost_streams == 0) return row;
  return absl::InternalError(absl::StrCat(counts.lost_streams, " streams were lost"));
}

struct Trained {
  double start_seconds = 0;  // until all processes are attached
  double train_seconds = 0;  // from the submission until the job has ended
};

// Real workers train a small model for five steps over TCP, a layer on each pp rank.
absl::StatusOr<Trained> TrainOn(int processes) {
  constexpr int kMostPpRanks = 64;
  const int pipeline = std::min(processes, kMostPpRanks), data = processes / pipeline;
  if (pipeline * data != processes)
    return absl::InvalidArgumentError("--processes must be less than 64 or a multiple of it");
  testing::Cluster cluster(0, testing::Cluster::Network::kTcp);
  Trained trained;
  absl::Time start = absl::Now();
  std::set<std::string> names;
  for (int i = 0; i < processes; ++i) {
    const std::string name = absl::StrCat("w", i);
    cluster.StartWorker(name);
    names.insert(name);
  }
  cluster.AwaitIdle(names, kProcessPatience);
  trained.start_seconds = SecondsSince(start);
  start = absl::Now();
  cluster.Submit(absl::StrCat(
      "name: ", kJob, "\nmodel: {family: gpt2, layers: ", pipeline,
      ", hidden: 16, heads: 2, context: 16, vocab: 256}\ndata: {train: {path: data.txt, format: "
      "bytes}}\nbatch: {global: ",
      8 * data, ", microbatch: 1}\nsteps: 5\nparallelism: {pipeline: ", pipeline, ", data: ", data,
      ", schedule: 1f1b, transport: tcp}\n"));
  const v1::Job job = cluster.AwaitEnd(kJob, kProcessPatience);
  trained.train_seconds = SecondsSince(start);
  if (job.state() == v1::JOB_STATE_SUCCEEDED && job.last_step().step() == 5) return trained;
  return absl::InternalError(
      absl::StrCat("the job of ", processes, " processes did not train: ", job.reason()));
}

absl::Status Run(const Options& options) {
  // Each worker is a connection, here and in the coordinator, which inherits the limit.
  rlimit descriptors{};
  getrlimit(RLIMIT_NOFILE, &descriptors);
  descriptors.rlim_cur = descriptors.rlim_max;
  setrlimit(RLIMIT_NOFILE, &descriptors);
  Table table(options.json(), {{"ranks", "ranks"},
                               {"pipeline", "pipeline"},
                               {"s to attach", "attach_seconds", 0, 2},
                               {"s to launch", "launch_seconds", 0, 2},
                               {"s to restart", "restart_seconds", 0, 2},
                               {"ms of a call meanwhile, p99", "call_seconds_p99", 0, 1, 1e3},
                               {"s until a tenth is back", "reattach_seconds", 0, 3},
                               {"s to stop", "stop_seconds", 0, 3},
                               {"bytes of an assignment", "assignment_bytes"},
                               {"MB of the coordinator", "coordinator_bytes", 0, 0, 1e-6}});
  std::vector<Row> rows;
  for (const int ranks : options.ranks) {
    ASSIGN_OR_RETURN(const Row row, Measure(options, ranks));
    table.Add(JsonOf(row), row.holds() ? "" : "over a limit");
    rows.push_back(row);
  }
  const nlohmann::json exponents = ExponentsOf(rows);
  if (!options.json() && rows.size() > 1) {
    std::string line = "exponents:";
    for (const auto& [name, exponent] : exponents.items())
      absl::StrAppendFormat(&line, " %s %.2f", name, exponent.get<double>());
    absl::PrintF("%s; limit %.1f\n", line, kMostExponent);
  }
  nlohmann::json end = {{"tls", options.tls},
                        {"workers_per_host", options.workers_per_host},
                        {"microbatches", options.microbatches},
                        {"exponents", exponents},
                        {"exponent_limit", kMostExponent},
                        {"holds", std::ranges::all_of(rows, &Row::holds) &&
                                      std::ranges::all_of(exponents, [](double exponent) {
                                        return exponent <= kMostExponent;
                                      })}};
  if (options.processes > 0) {
    ASSIGN_OR_RETURN(const Trained trained, TrainOn(options.processes));
    end["processes"] = {{"processes", options.processes},
                        {"start_seconds", trained.start_seconds},
                        {"train_seconds", trained.train_seconds}};
    if (!options.json()) {
      absl::PrintF("%d processes started in %.0f s and trained five steps in %.0f s\n",
                   options.processes, trained.start_seconds, trained.train_seconds);
    }
  }
  table.End(std::move(end));
  return absl::OkStatus();
}

}  // namespace

void Add(CLI::App& app, absl::Status& result) {
  AddCommand<Options>(
      app, result, "scale", "Start and stop of one job of many emulated ranks",
      [](CLI::App& command, Options& options) {
        command.add_option("--ranks", options.ranks, "Ranks of the job, each size in turn")
            ->delimiter(',')
            ->check(CLI::Range(2, 10'000));
        command.add_option("--microbatches", options.microbatches, "Microbatches of a replica")
            ->check(CLI::Range(1, 1024));
        command
            .add_option("--processes", options.processes,
                        "Real workers that train a small model over TCP, less than 64 or a "
                        "multiple of it; 0: none")
            ->check(CLI::Range(0, 1024));
        command
            .add_option("--workers-per-host", options.workers_per_host,
                        "Workers that share the connection of their host; 0: each has its own")
            ->check(CLI::Range(0, 256));
        command.add_flag("--tls", options.tls,
                         "Over TCP with mutual TLS, each worker with a certificate of its own");
      },
      Run);
}

}  // namespace takt::bench::scale_command
