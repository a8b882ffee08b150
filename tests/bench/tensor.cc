// SPDX-License-Identifier: Apache-2.0
// Measures steps of emulated layers that several ranks share, beside the simulated ones. Ranks meet
// before each F and I of a layer and after it. What their meetings take is measured in the same
// run: the first of two runs of a job teaches the profile that predicts the second.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "common/cost/costs.h"
#include "common/plan/plan.h"
#include "common/profile/learn.h"
#include "common/trace/timeline.h"
#include "tests/bench/command.h"
#include "tests/bench/commands.h"
#include "tests/bench/job_run.h"
#include "tests/bench/statistics.h"
#include "tests/bench/table.h"

namespace takt::bench::tensor_command {
namespace {

constexpr double kLimit = 1.03;  // measured over simulated
constexpr int kRanks = 8, kPipeline = 2;
constexpr std::int64_t kWarmupSteps = 3;

struct Options : CommonOptions {
  std::vector<int> tensor = {2, 4};
  std::vector<std::string> schedules = {"1f1b", "zb-h1"};
  int microbatches = 8, steps = 30;
  double milliseconds = 5;
  std::int64_t bytes = 64 * 1024;
};

struct Row {
  int tensor = 1;
  std::string schedule;
  double measured = 0, simulated = 0;  // seconds of a step
  double meeting = 0;                  // seconds of one, once all are there
  double meetings_share = 0;           // of the simulated step

  double ratio() const { return measured / simulated; }
  bool holds() const { return ratio() <= kLimit; }
};

nlohmann::json ToJson(const Row& row) {
  return {{"tensor", row.tensor},
          {"schedule", row.schedule},
          {"measured_seconds", row.measured},
          {"simulated_seconds", row.simulated},
          {"meeting_seconds", row.meeting},
          {"meetings_share", row.meetings_share},
          {"limit", kLimit},
          {"ratio", row.ratio()},
          {"holds", row.holds()}};
}

config::JobSpec JobOf(int tensor, const std::string& schedule, const Options& options) {
  const int data = std::max(1, kRanks / (kPipeline * tensor));
  config::JobSpec job;
  job.name = absl::StrCat("tensor-", tensor, "-", schedule);
  const double seconds = options.milliseconds * 1e-3;
  job.model = {.family = model::Family::kEmulated,
               .layers = 2 * kPipeline,
               .context = 1,
               .forward_seconds = seconds,
               .input_grad_seconds = seconds,
               .weight_grad_seconds = seconds,
               .activation_bytes = options.bytes,
               .collective_bytes = options.bytes};
  job.global_batch = options.microbatches * data;
  job.steps = kWarmupSteps + options.steps;
  job.parallelism.pipeline = kPipeline;
  job.parallelism.data = data;
  job.parallelism.tensor = tensor;
  job.parallelism.threads = 1;
  job.parallelism.schedule = schedule;
  return job;
}

absl::StatusOr<Row> Measure(const config::JobSpec& job, const Options& options) {
  plan::PlanOptions known{.max_workers = kRanks};
  ASSIGN_OR_RETURN(const plan::Plan unmeasured, plan::MakePlan(job, known));
  ASSIGN_OR_RETURN(const JobRun first, RunJob(job, unmeasured, /*threads=*/1, /*data_root=*/""));
  const std::vector<profile::RankPlace> places(static_cast<std::size_t>(unmeasured.mesh.size()),
                                               {.host = "here"});
  const auto profile = std::make_shared<profile::Profile>();
  RETURN_IF_ERROR(profile::Learn(
      first.trace, {.model = unmeasured.model, .partition = unmeasured.partition, .places = places},
      1, *profile));
  known.profile = profile;
  ASSIGN_OR_RETURN(const plan::Plan plan, plan::MakePlan(job, known));
  ASSIGN_OR_RETURN(const JobRun second, RunJob(job, plan, /*threads=*/1, /*data_root=*/""));
  const std::vector<double> seconds = second.SecondsAfter(kWarmupSteps);
  if (seconds.empty()) return absl::InternalError("no step was measured");
  const int tensor = job.parallelism.tensor;
  const std::int64_t bytes = options.bytes / tensor * (tensor - 1);
  // Each rank has two layers, which meet twice in F and twice in I of each microbatch.
  const double meetings = 8.0 * options.microbatches;
  const double meeting = cost::MeetingCost(plan.costs.tensor.front(), bytes);
  return Row{.tensor = tensor,
             .schedule = job.parallelism.schedule,
             .measured = Median(seconds),
             .simulated = plan.predicted_step_seconds,
             .meeting = meeting,
             .meetings_share = meetings * meeting / plan.predicted_step_seconds};
}

absl::Status Run(const Options& options) {
  if (!options.json()) {
    absl::PrintF(
        "%d ranks, pipeline %d, %d microbatches, F = I = W = %g ms a layer, meetings of "
        "%d bytes; medians of %d steps\n",
        kRanks, kPipeline, options.microbatches, options.milliseconds, options.bytes,
        options.steps);
  }
  Table table(options.json(), {{"tensor", "tensor"},
                               {"schedule", "schedule", 10},
                               {"step ms", "measured_seconds", 9, 2, 1e3},
                               {"simulated", "simulated_seconds", 9, 2, 1e3},
                               {absl::StrFormat("ratio (limit %.2f)", kLimit), "ratio", 0, 3},
                               {"a meeting us", "meeting_seconds", 0, 0, 1e6},
                               {"meetings % of step", "meetings_share", 0, 1, 100}});
  for (const int tensor : options.tensor) {
    for (const std::string& schedule : options.schedules) {
      ASSIGN_OR_RETURN(const Row row, Measure(JobOf(tensor, schedule, options), options));
      table.Add(ToJson(row), row.holds() ? "" : "over");
    }
  }
  table.End({});
  return absl::OkStatus();
}

}  // namespace

void Add(CLI::App& app, absl::Status& result) {
  AddCommand<Options>(
      app, result, "tensor", "Steps of emulated layers that ranks share, beside simulated ones",
      [](CLI::App& command, Options& options) {
        command.add_option("--tensor", options.tensor, "Ranks that share a layer: 2, 4")
            ->delimiter(',')
            ->check(CLI::IsMember({2, 4}));
        command.add_option("--schedules", options.schedules, "Families")->delimiter(',');
        command.add_option("--microbatches", options.microbatches, "Of a step")
            ->check(CLI::Range(2, 1024));
        command.add_option("--milliseconds", options.milliseconds, "Of each of F, I and W")
            ->check(CLI::PositiveNumber);
        command.add_option("--bytes", options.bytes, "Of what a layer gathers and scatters")
            ->check(CLI::Range(1024, 1 << 26));
        command.add_option("--steps", options.steps, "Steps of which medians are taken")
            ->check(CLI::Range(1, 500));
      },
      Run);
}

}  // namespace takt::bench::tensor_command
