// SPDX-License-Identifier: Apache-2.0
// Measures the planner's inner loop on one thread (generate, lower, prove and simulate one
// schedule), and how its time grows with the number of microbatches.
#include <ctime>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "common/program/lowering.h"
#include "common/schedule/generate.h"
#include "common/sim/prove.h"
#include "common/sim/simulate.h"
#include "tests/bench/command.h"
#include "tests/bench/commands.h"
#include "tests/bench/process_usage.h"
#include "tests/bench/table.h"

namespace takt::bench::planner_command {
namespace {

// The limits are about this size.
constexpr int kMicrobatches = 512;
constexpr double kMostSeconds = 1;
constexpr double kMostBytes = 1e9;
// The sizes ascend, so that the process's peak memory after each size belongs to that size.
constexpr int kAllMicrobatches[] = {128, 256, 512, 1024, 2048};

struct Options : CommonOptions {
  std::string schedule = "interleaved-1f1b";
  int ranks = 64, chunks = 4, runs = 3;
};

// CPU time of one thread, so that other programs do not count.
struct Seconds {
  double generate = 0, lower = 0, prove = 0, simulate = 0;
  double total() const { return generate + lower + prove + simulate; }
};

struct Row {
  int microbatches = 0;
  std::int64_t actions = 0, instructions = 0;
  Seconds seconds;  // those of the best run
  std::int64_t peak_rss_bytes = 0;
};

class Stopwatch {
 public:
  double Lap() {
    const std::clock_t now = std::clock();
    const double seconds = static_cast<double>(now - since_) / CLOCKS_PER_SEC;
    since_ = now;
    return seconds;
  }

 private:
  std::clock_t since_ = std::clock();
};

absl::StatusOr<Row> RunOnce(const Options& options, int microbatches) {
  Row row{.microbatches = microbatches};
  Stopwatch stopwatch;
  ASSIGN_OR_RETURN(const schedule::Schedule schedule,
                   schedule::Generate(options.schedule, {.num_ranks = options.ranks,
                                                         .num_microbatches = microbatches,
                                                         .num_chunks = options.chunks}));
  row.seconds.generate = stopwatch.Lap();
  ASSIGN_OR_RETURN(const std::vector<program::Program> programs, program::Lower(schedule, {}));
  row.seconds.lower = stopwatch.Lap();
  RETURN_IF_ERROR(sim::Prove(programs));
  row.seconds.prove = stopwatch.Lap();
  RETURN_IF_ERROR(sim::Simulate(programs, {}).status());
  row.seconds.simulate = stopwatch.Lap();
  for (const schedule::Row& actions : schedule.ranks) {
    row.actions += static_cast<std::int64_t>(actions.size());
  }
  for (const program::Program& program : programs) {
    row.instructions += static_cast<std::int64_t>(program.body.size());
  }
  row.peak_rss_bytes = PeakRssBytes();
  return row;
}

absl::StatusOr<Row> BestRun(const Options& options, int microbatches) {
  ASSIGN_OR_RETURN(Row best, RunOnce(options, microbatches));
  for (int run = 1; run < options.runs; ++run) {
    ASSIGN_OR_RETURN(const Row row, RunOnce(options, microbatches));
    if (row.seconds.total() < best.seconds.total()) best.seconds = row.seconds;
  }
  return best;
}

double NanosecondsPerAction(const Row& row) {
  return row.seconds.total() * 1e9 / static_cast<double>(row.actions);
}

nlohmann::json ToJson(const Row& row) {
  return {{"microbatches", row.microbatches},
          {"actions", row.actions},
          {"instructions", row.instructions},
          {"generate_seconds", row.seconds.generate},
          {"lower_seconds", row.seconds.lower},
          {"prove_seconds", row.seconds.prove},
          {"simulate_seconds", row.seconds.simulate},
          {"total_seconds", row.seconds.total()},
          {"nanoseconds_per_action", NanosecondsPerAction(row)},
          {"peak_rss_bytes", row.peak_rss_bytes}};
}

absl::Status Run(const Options& options) {
  if (!options.json()) {
    absl::PrintF("%s, %d ranks, %d chunks, one thread\n", options.schedule, options.ranks,
                 options.chunks);
  }
  Table table(options.json(), {{"microbatches", "microbatches"},
                               {"actions", "actions", 9},
                               {"instructions", "instructions"},
                               {"generate", "generate_seconds", 0, 3},
                               {"lower", "lower_seconds", 8, 3},
                               {"prove", "prove_seconds", 8, 3},
                               {"simulate", "simulate_seconds", 0, 3},
                               {"total s", "total_seconds", 8, 3},
                               {"ns/action", "nanoseconds_per_action"},
                               {"peak MB", "peak_rss_bytes", 0, 0, 1e-6}});
  nlohmann::json summary = {{"schedule", options.schedule},
                            {"ranks", options.ranks},
                            {"chunks", options.chunks},
                            {"limit_seconds", kMostSeconds},
                            {"limit_bytes", kMostBytes}};
  for (const int microbatches : kAllMicrobatches) {
    ASSIGN_OR_RETURN(const Row row, BestRun(options, microbatches));
    const nlohmann::json json = ToJson(row);
    if (microbatches != kMicrobatches) {
      table.Add(json);
      continue;
    }
    summary.update(json);
    table.Add(json, absl::StrFormat("limits: %g s, %g MB", kMostSeconds, kMostBytes * 1e-6));
  }
  table.End(std::move(summary));
  return absl::OkStatus();
}

}  // namespace

void Add(CLI::App& app, absl::Status& result) {
  AddCommand<Options>(
      app, result, "planner",
      "Generate, lower, prove and simulate a schedule for 128 to 2048 microbatches",
      [](CLI::App& command, Options& options) {
        command.add_option("--schedule", options.schedule, "Family");
        command.add_option("--ranks", options.ranks, "Ranks")->check(CLI::Range(1, 1024));
        command.add_option("--chunks", options.chunks, "Chunks per rank")->check(CLI::Range(1, 64));
        command.add_option("--runs", options.runs, "The best of so many runs counts")
            ->check(CLI::Range(1, 1000));
      },
      Run);
}

}  // namespace takt::bench::planner_command
