// SPDX-License-Identifier: Apache-2.0
// The bubble that real daemons measure on emulated stages, beside the one that the plan simulated.
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
#include "tests/bench/commands.h"
#include "tests/testing/cluster.h"

namespace takt::bench {
namespace {

constexpr double kLimit = 0.02;
constexpr int kSkippedSteps = 2;  // nothing is ahead of them

struct Options {
  std::vector<std::string> schedules = {"gpipe", "1f1b", "zb-h1", "interleaved-1f1b"};
  int ranks = 4, microbatches = 8, steps = 20;
  double milliseconds = 10;
  std::string output = "text";
};

struct Row {
  std::string schedule;
  double step_seconds = 0, predicted_step_seconds = 0;
  double bubble = 0, predicted_bubble = 0;
  double runtime_share = 0, communication_share = 0, sync_share = 0;  // of the step

  double difference() const { return bubble / predicted_bubble - 1; }
};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

absl::StatusOr<Row> Measure(testing::Cluster& cluster, const std::string& schedule,
                            const Options& options) {
  const testing::EmulatedJob job{.name = schedule,
                                 .pipeline = options.ranks,
                                 .microbatches = options.microbatches,
                                 .steps = kSkippedSteps + options.steps,
                                 .milliseconds = options.milliseconds,
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

void PrintRow(const Row& row) {
  absl::PrintF("%-17s %9.2f  %9.2f  %8.4f  %9.4f  %+9.2f%%  %10.2f%%  %12.2f%%  %5.2f%%%s\n",
               row.schedule, 1e3 * row.step_seconds, 1e3 * row.predicted_step_seconds, row.bubble,
               row.predicted_bubble, 100 * row.difference(), 100 * row.runtime_share,
               100 * row.communication_share, 100 * row.sync_share,
               std::abs(row.difference()) > kLimit ? "  over" : "");
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
  const bool json = options.output == "json";
  testing::Cluster cluster(options.ranks);
  nlohmann::json rows = nlohmann::json::array();
  if (!json) {
    absl::PrintF("%d ranks, %d microbatches, F = I = W = %g ms; medians of %d steps\n",
                 options.ranks, options.microbatches, options.milliseconds, options.steps);
    absl::PrintF(
        "schedule            step ms  simulated    bubble  simulated  difference  runtime of step  "
        "messages   sums (limit %.0f %%)\n",
        100 * kLimit);
  }
  for (const std::string& schedule : options.schedules) {
    ASSIGN_OR_RETURN(const Row row, Measure(cluster, schedule, options));
    if (json) {
      rows.push_back(RowJson(row));
    } else {
      PrintRow(row);
    }
  }
  if (json) absl::PrintF("%s\n", nlohmann::json{{"rows", rows}}.dump());
  return absl::OkStatus();
}

}  // namespace

void AddBubbleCommand(CLI::App& app, absl::Status& result) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand(
      "bubble", "The bubble of emulated stages on real daemons against the simulated one");
  command->add_option("--schedules", options->schedules, "Families")
      ->delimiter(',')
      ->capture_default_str();
  command->add_option("--ranks", options->ranks, "Workers, each a rank of the pipeline")
      ->check(CLI::Range(1, 32))
      ->capture_default_str();
  command->add_option("--microbatches", options->microbatches, "Of a step")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command->add_option("--milliseconds", options->milliseconds, "Of each of F, I and W of a stage")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--steps", options->steps, "Steps of which medians are taken")
      ->check(CLI::Range(1, 500))
      ->capture_default_str();
  command->add_option("-o,--output", options->output, "text or json")
      ->check(CLI::IsMember({"text", "json"}))
      ->capture_default_str();
  command->callback([options, &result] { result = Run(*options); });
}

}  // namespace takt::bench
