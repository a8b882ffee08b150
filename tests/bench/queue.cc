// SPDX-License-Identifier: Apache-2.0
// Compares what the coordinator's queue decides with two simpler policies, over thousands of random
// jobs in simulated time.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/bench/command.h"
#include "tests/bench/commands.h"
#include "tests/bench/queue_simulation.h"
#include "tests/bench/table.h"

namespace takt::bench::queue_command {
namespace {

constexpr double kHour = 3600;
constexpr double kTolerance = 1e-3;  // seconds that a rounded sum of times may be late

struct Options : CommonOptions {
  QueueLoad load;
};

struct Waits {
  double mean = 0, longest = 0, longest_of_widest = 0;  // seconds; widest: of all workers
};

Waits WaitsOf(const std::vector<SimulatedJob>& jobs, const QueueOutcome& outcome, int workers) {
  Waits waits;
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    const double wait = outcome.starts[i] - jobs[i].arrival;
    waits.mean += wait / static_cast<double>(jobs.size());
    waits.longest = std::max(waits.longest, wait);
    if (jobs[i].workers == workers)
      waits.longest_of_widest = std::max(waits.longest_of_widest, wait);
  }
  return waits;
}

// Returns the share of the workers that is busy from the first arrival to the last.
double Utilisation(const std::vector<SimulatedJob>& jobs, const QueueOutcome& outcome,
                   int workers) {
  const double first = jobs.front().arrival, last = jobs.back().arrival;
  double busy = 0;
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    const double end = std::min(outcome.starts[i] + jobs[i].seconds, last);
    busy += jobs[i].workers * std::max(0.0, end - outcome.starts[i]);
  }
  return busy / (workers * (last - first));
}

// Returns how long at most a job waited after all jobs that came before it had ended. Only later
// jobs can make it wait then.
double LongestBehindLaterJobs(const std::vector<SimulatedJob>& jobs, const QueueOutcome& outcome) {
  double longest = 0, earlier_end = 0;
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    longest = std::max(longest, outcome.starts[i] - std::max(earlier_end, jobs[i].arrival));
    earlier_end = std::max(earlier_end, outcome.starts[i] + jobs[i].seconds);
  }
  return longest;
}

// Returns how much later than its first reservation a job started at most.
double LatestStart(const QueueOutcome& outcome) {
  double latest = 0;
  for (std::size_t i = 0; i < outcome.starts.size(); ++i)
    latest = std::max(latest, outcome.starts[i] - outcome.promises[i]);
  return latest;
}

struct Case {
  std::string policy;
  QueuePolicy rule;
  double error = 0;
};

nlohmann::json Measure(const Case& of, QueueLoad load) {
  load.error = of.error;
  const std::vector<SimulatedJob> jobs = MakeJobs(load);
  const QueueOutcome outcome = SimulateQueue(jobs, load.workers, of.rule);
  const Waits waits = WaitsOf(jobs, outcome, load.workers);
  const double behind = LongestBehindLaterJobs(jobs, outcome);
  const double late = LatestStart(outcome);
  // With exact predictions no reservation is delayed. With others, a job that was let pass may
  // delay the first of the jobs that wait by no more than its own duration.
  const bool exact = of.rule == QueuePolicy::kReserve && of.error == 0;
  const bool held = exact ? late <= kTolerance : behind <= load.longest;
  return {{"policy", of.policy},
          {"error", of.error},
          {"utilisation", Utilisation(jobs, outcome, load.workers)},
          {"mean_wait_seconds", waits.mean},
          {"longest_wait_seconds", waits.longest},
          {"longest_wait_of_widest_seconds", waits.longest_of_widest},
          {"longest_behind_later_jobs_seconds", behind},
          {"latest_after_reservation_seconds", late},
          {"bound_held", held},
          {"bound", held ? "held" : "broken"},
          {"most_waiting", outcome.most_waiting},
          {"decision_seconds", outcome.serve_seconds}};
}

absl::Status RunQueue(const Options& options) {
  const QueueLoad& load = options.load;
  Table table(
      options.json(),
      {{.heading = "policy", .key = "policy", .width = 31},
       {.heading = "error", .key = "error", .precision = 1},
       {.heading = "utilisation %", .key = "utilisation", .precision = 1, .scale = 100},
       {.heading = "mean wait h", .key = "mean_wait_seconds", .precision = 1, .scale = 1 / kHour},
       {.heading = "longest h", .key = "longest_wait_seconds", .precision = 1, .scale = 1 / kHour},
       {.heading = "of the widest h",
        .key = "longest_wait_of_widest_seconds",
        .precision = 1,
        .scale = 1 / kHour},
       {.heading = "behind later jobs h",
        .key = "longest_behind_later_jobs_seconds",
        .precision = 1,
        .scale = 1 / kHour},
       {.heading = "after reservation h",
        .key = "latest_after_reservation_seconds",
        .precision = 1,
        .scale = 1 / kHour},
       {.heading = "bound", .key = "bound"},
       {.heading = "waiting", .key = "most_waiting"},
       {.heading = "decisions s", .key = "decision_seconds", .precision = 2}});
  const Case cases[] = {
      {.policy = "first come, first served", .rule = QueuePolicy::kFirstComeFirstServed},
      {.policy = "backfill without reservations", .rule = QueuePolicy::kBackfill},
      {.policy = "reservations, exact predictions", .rule = QueuePolicy::kReserve},
      {.policy = "reservations", .rule = QueuePolicy::kReserve, .error = load.error}};
  for (const Case& of : cases) table.Add(Measure(of, load));
  table.End({{"jobs", load.jobs},
             {"workers", load.workers},
             {"load", load.load},
             {"longest_job_seconds", load.longest},
             {"seed", load.seed}});
  return absl::OkStatus();
}

}  // namespace

void Add(CLI::App& app, absl::Status& result) {
  AddCommand<Options>(
      app, result, "queue", "The queue's reservations beside simpler policies, simulated",
      [](CLI::App& command, Options& options) {
        QueueLoad& load = options.load;
        command.add_option("--jobs", load.jobs, "How many jobs come")->check(CLI::PositiveNumber);
        command.add_option("--workers", load.workers, "Of the cluster")->check(CLI::PositiveNumber);
        command
            .add_option("--load", load.load, "Share of the workers that the jobs would keep busy")
            ->check(CLI::PositiveNumber);
        command.add_option("--shortest", load.shortest, "Seconds of the shortest job")
            ->check(CLI::PositiveNumber);
        command.add_option("--longest", load.longest, "Seconds of the longest job")
            ->check(CLI::PositiveNumber);
        command
            .add_option("--error", load.error,
                        "Standard deviation of the logarithm of predicted by real duration")
            ->check(CLI::NonNegativeNumber);
        command.add_option("--seed", load.seed, "Of the random jobs");
      },
      RunQueue);
}

}  // namespace takt::bench::queue_command
