// SPDX-License-Identifier: Apache-2.0
// Measures what copies of the state in memory cost training. The example's model trains on real
// daemons with copies and without them, in turns, so that other load on the machine affects both.
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "tests/bench/command.h"
#include "tests/bench/commands.h"
#include "tests/bench/process_usage.h"
#include "tests/bench/statistics.h"
#include "tests/bench/table.h"
#include "tests/testing/cluster.h"

namespace takt::bench::copies_command {
namespace {

using testing::Cluster;

constexpr double kLimit = 0.02;
constexpr std::int64_t kSkippedSteps = 5;

struct Options : CommonOptions {
  int turns = 8, steps = 60;
};

// Returns the model and batch of deploy/examples/kjv.yaml on two ranks, one for each core.
// copies: empty for none.
std::string Yaml(const std::string& job, const std::string& copies, const Options& options) {
  return absl::StrCat(
      "name: ", job,
      "\nmodel: {family: gpt2, layers: 4, hidden: 160, heads: 5, context: 128, vocab: 256}"
      "\ndata: {train: {path: data.txt, format: bytes}, shuffle: true}"
      "\nbatch: {global: 32, microbatch: 4}\nsteps: ",
      kSkippedSteps + options.steps,
      "\nseed: 7\nparallelism: {threads: 1, pipeline: 2, data: 1, schedule: 1f1b}\n",
      copies.empty() ? "" : absl::StrCat("checkpoint: {in_memory: ", copies, "}\n"));
}

// Says what the workers took for a step.
struct Cost {
  double seconds = 0;      // as they tell it; the mean, because copies belong to few steps
  double cpu_seconds = 0;  // of all their threads, with the job's begin and end
};

double CpuOfWorkers(Cluster& cluster) {
  return CpuSeconds(cluster.worker("w0").pid()) + CpuSeconds(cluster.worker("w1").pid());
}

absl::StatusOr<Cost> MeasureJob(Cluster& cluster, const std::string& yaml,
                                const std::string& name) {
  const double cpu_before = CpuOfWorkers(cluster);
  cluster.Submit(yaml);
  const v1::Job job = cluster.AwaitEnd(name, absl::Minutes(10));
  if (job.state() != v1::JOB_STATE_SUCCEEDED)
    return absl::InternalError(absl::StrCat("job ", name, ": ", job.reason()));
  double seconds = 0;
  std::int64_t steps = 0;
  for (const v1::StepReport& step : cluster.Steps(name)) {
    if (step.step() <= kSkippedSteps) continue;
    seconds += step.step_seconds();
    ++steps;
  }
  if (steps == 0) return absl::InternalError(absl::StrCat("job ", name, " reported no step"));
  return Cost{.seconds = seconds / static_cast<double>(steps),
              .cpu_seconds = (CpuOfWorkers(cluster) - cpu_before) /
                             static_cast<double>(steps + kSkippedSteps)};
}

absl::Status Run(const Options& options) {
  Table table(options.json(), {{.heading = "copies", .key = "copies", .width = 8},
                               {.heading = "step ms", .key = "without_ms", .precision = 1},
                               {.heading = "cost %", .key = "cost_percent", .precision = 2},
                               {.heading = "+-", .key = "spread_percent", .precision = 2},
                               {.heading = "CPU %", .key = "cpu_cost_percent", .precision = 2},
                               {.heading = "+-", .key = "cpu_spread_percent", .precision = 2}});
  Cluster cluster(2);
  int jobs = 0;
  for (const std::string copies : {"auto", "1"}) {
    std::vector<double> costs, cpu_costs, without_ms;
    for (int turn = 0; turn < options.turns; ++turn) {
      Cost with, without;
      for (const bool copied : {turn % 2 == 0, turn % 2 != 0}) {
        const std::string name = absl::StrCat("job-", jobs++);
        ASSIGN_OR_RETURN((copied ? with : without),
                         MeasureJob(cluster, Yaml(name, copied ? copies : "", options), name));
      }
      costs.push_back(100 * (with.seconds / without.seconds - 1));
      cpu_costs.push_back(100 * (with.cpu_seconds / without.cpu_seconds - 1));
      without_ms.push_back(1e3 * without.seconds);
    }
    const double cost = Median(costs);
    const bool limited = copies == "auto";  // a job that names a number of steps gets it
    table.Add({{"copies", copies},
               {"without_ms", Median(without_ms)},
               {"cost_percent", cost},
               {"spread_percent", Spread(costs)},
               {"cpu_cost_percent", Median(cpu_costs)},
               {"cpu_spread_percent", Spread(cpu_costs)}},
              limited && cost > 100 * kLimit ? "above its limit" : "");
  }
  table.End({{"limit_percent", 100 * kLimit}, {"turns", options.turns}});
  return absl::OkStatus();
}

}  // namespace

void Add(CLI::App& app, absl::Status& result) {
  AddCommand<Options>(
      app, result, "copies", "What copies of the state in memory cost training on real daemons",
      [](CLI::App& command, Options& options) {
        command.add_option("--turns", options.turns, "Pairs of runs, with and without")
            ->check(CLI::Range(2, 1000));
        command.add_option("--steps", options.steps, "Steps of each run that count")
            ->check(CLI::Range(10, 100'000));
      },
      Run);
}

}  // namespace takt::bench::copies_command
