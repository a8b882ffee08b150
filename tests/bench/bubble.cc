// SPDX-License-Identifier: Apache-2.0
// Measures the bubble of emulated stages on real daemons, beside the one that the plan simulated.
#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "common/explain/explain.h"
#include "common/trace/timeline.h"
#include "tests/bench/command.h"
#include "tests/bench/commands.h"
#include "tests/bench/statistics.h"
#include "tests/bench/table.h"
#include "tests/testing/cluster.h"

namespace takt::bench::bubble_command {
namespace {

constexpr double kLimit = 0.02;
constexpr int kSkippedSteps = 2;  // the pipeline is still empty before them

struct Options : CommonOptions {
  std::vector<std::string> schedules = {"gpipe", "1f1b", "zb-h1", "interleaved-1f1b"};
  int ranks = 4, replicas = 1, microbatches = 8, steps = 20;
  double milliseconds = 10, parameter_mib = 0;  // of a layer; a rank has two
};

struct Row {
  std::string schedule;
  double step_seconds = 0, predicted_step_seconds = 0;
  double bubble = 0, predicted_bubble = 0;
  double runtime_share = 0, communication_share = 0, sync_share = 0;  // shares of the step

  double difference() const { return bubble / predicted_bubble - 1; }
};

absl::StatusOr<Row> Measure(testing::Cluster& cluster, const std::string& schedule,
                            const Options& options) {
  const testing::EmulatedJob job{
      .name = schedule,
      .pipeline = options.ranks,
      .data = options.replicas,
      .microbatches = options.microbatches,
      .steps = kSkippedSteps + options.steps,
      .milliseconds = options.milliseconds,
      .parameter_bytes = static_cast<std::int64_t>(options.parameter_mib * 256) << 12,
      .schedule = schedule};
  cluster.Submit(job.Yaml());
  const v1::Job ended = cluster.AwaitEnd(schedule, absl::Minutes(10));
  if (ended.state() != v1::JOB_STATE_SUCCEEDED) {
    return absl::InternalError(absl::StrCat("job ", schedule, ": ", ended.reason()));
  }
  const trace::JobTrace trace = cluster.Trace(schedule, options.steps);
  ASSIGN_OR_RETURN(const trace::Timeline timeline, trace::MakeTimeline(trace));
  std::vector<double> step_seconds, bubbles, runtime, communication, sync;
  Row row{.schedule = schedule};
  for (const trace::StepWindow& window : timeline.steps) {
    if (window.step <= StepId(kSkippedSteps)) continue;
    ASSIGN_OR_RETURN(const explain::Explanation step, explain::Explain(timeline, window.step));
    const auto share = [&](explain::Part part) {
      return step.parts[static_cast<int>(part)] / step.step_seconds;
    };
    step_seconds.push_back(step.step_seconds);
    bubbles.push_back(step.bubble_fraction);
    runtime.push_back(share(explain::Part::kRuntime));
    communication.push_back(share(explain::Part::kCommunication));
    sync.push_back(share(explain::Part::kSync));
    row.predicted_step_seconds = step.predicted_step_seconds.value_or(0);
    row.predicted_bubble = step.predicted_bubble_fraction.value_or(0);
  }
  if (bubbles.empty()) return absl::InternalError(absl::StrCat("job ", schedule, ": no traces"));
  row.step_seconds = Median(std::move(step_seconds));
  row.bubble = Median(std::move(bubbles));
  row.runtime_share = Median(std::move(runtime));
  row.communication_share = Median(std::move(communication));
  row.sync_share = Median(std::move(sync));
  return row;
}

nlohmann::json RowJson(const Row& row) {
  return {{"schedule", row.schedule},
          {"step_seconds", row.step_seconds},
          {"predicted_step_seconds", row.predicted_step_seconds},
          {"bubble_fraction", row.bubble},
          {"predicted_bubble_fraction", row.predicted_bubble},
          {"difference", row.difference()},
          {"runtime_share", row.runtime_share},
          {"communication_share", row.communication_share},
          {"sync_share", row.sync_share}};
}

absl::Status Run(const Options& options) {
  testing::Cluster cluster(options.ranks * options.replicas);
  if (!options.json()) {
    absl::PrintF(
        "%d ranks, %d replicas of %g MiB a layer, %d microbatches, F = I = W = %g ms; medians of "
        "%d "
        "steps\n",
        options.ranks, options.replicas, options.parameter_mib, options.microbatches,
        options.milliseconds, options.steps);
  }
  Table table(options.json(), {{"schedule", "schedule", 17},
                               {"step ms", "step_seconds", 9, 2, 1e3},
                               {"simulated", "predicted_step_seconds", 9, 2, 1e3},
                               {"bubble", "bubble_fraction", 8, 4},
                               {"simulated", "predicted_bubble_fraction", 9, 4},
                               {absl::StrFormat("difference %% (limit %.0f)", 100 * kLimit),
                                "difference", 0, 2, 100},
                               {"runtime % of step", "runtime_share", 0, 2, 100},
                               {"messages %", "communication_share", 0, 2, 100},
                               {"sums %", "sync_share", 0, 2, 100}});
  for (const std::string& schedule : options.schedules) {
    ASSIGN_OR_RETURN(const Row row, Measure(cluster, schedule, options));
    table.Add(RowJson(row), std::abs(row.difference()) > kLimit ? "over" : "");
  }
  table.End({});
  return absl::OkStatus();
}

}  // namespace

void Add(CLI::App& app, absl::Status& result) {
  AddCommand<Options>(
      app, result, "bubble",
      "The bubble of emulated stages on real daemons against the simulated one",
      [](CLI::App& command, Options& options) {
        command.add_option("--schedules", options.schedules, "Families")->delimiter(',');
        command.add_option("--ranks", options.ranks, "Ranks of a pipeline")
            ->check(CLI::Range(1, 32));
        command.add_option("--replicas", options.replicas, "Pipelines that sum their gradients")
            ->check(CLI::Range(1, 8));
        command.add_option("--parameter-mib", options.parameter_mib, "MiB of weights of a layer")
            ->check(CLI::Range(0.0, 256.0));
        command.add_option("--microbatches", options.microbatches, "Of a step and replica")
            ->check(CLI::Range(1, 1024));
        command
            .add_option("--milliseconds", options.milliseconds, "Of each of F, I and W of a stage")
            ->check(CLI::PositiveNumber);
        command.add_option("--steps", options.steps, "Steps of which medians are taken")
            ->check(CLI::Range(1, 500));
      },
      Run);
}

}  // namespace takt::bench::bubble_command
