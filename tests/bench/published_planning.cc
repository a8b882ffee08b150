// SPDX-License-Identifier: Apache-2.0
// Measures what it takes to plan Llama 3.1 405B for large clusters: pipeline and schedule are open,
// and every schedule is simulated.
#include <algorithm>
#include <ctime>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "tests/bench/process_usage.h"
#include "tests/bench/published.h"
#include "tests/bench/table.h"

namespace takt::bench {
namespace {

constexpr char kGroup[] = "llama-405b-paper";  // 2,048 sequences of 8,192 tokens
// The first two limit what planning for the largest cluster takes. The third limits by how much the
// time of a microbatch on a stage grows.
constexpr int kLimitedGpus = 16384;
constexpr double kMostSeconds = 5, kMostBytes = 2e9, kMostGrowth = 1.25;

struct Size {
  int gpus = 1, tensor = 1, data = 1;
  bool in_mesh = false;  // tensor is an axis of the mesh; else a tensor group counts as one device
};

// Less data parallelism makes more microbatches a step. Sizes ascend by what is simulated, so that
// the process's peak memory after each of them belongs to it.
constexpr Size kSizes[] = {{16384, 8, 128},       {8192, 8, 64}, {4096, 8, 32},
                           {16384, 8, 128, true}, {2048, 8, 16}, {1024, 8, 8}};

// Returns the model's published run, changed to this size.
PublishedRun RunOf(const Size& size, const PublishedCases& cases) {
  PublishedRun run = *std::ranges::find(cases.runs, std::string(kGroup), &PublishedRun::group);
  run.tensor = size.tensor;
  run.data = size.data;
  run.pipeline = std::min(size.gpus / (size.tensor * size.data), run.model.layers + 2);
  return run;
}

absl::StatusOr<nlohmann::json> Measure(const Size& size, const PublishedRun& run,
                                       const MachineModel& machine) {
  config::JobSpec job = OpenJobOf(run);
  job.parallelism.data = size.data;
  if (size.in_mesh) job.parallelism.tensor = size.tensor;
  const int gpus_per_device = size.in_mesh ? 1 : size.tensor;
  const std::clock_t begin = std::clock();
  ASSIGN_OR_RETURN(
      const plan::PlanOptions options,
      OptionsOn(machine, job, {.tensor = gpus_per_device}, size.gpus / gpus_per_device));
  const absl::StatusOr<plan::Plan> plan = plan::MakePlan(job, options);
  const double seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  const int microbatches = job.MicrobatchesPerStep(size.data);
  // The longest of the pipelines that are tried decides.
  const double simulated = static_cast<double>(run.pipeline) * microbatches;
  return nlohmann::json{
      {"part", "planning"},
      {"gpus", size.gpus},
      {"tensor", size.tensor},
      {"tensor_group", size.in_mesh ? "axis" : "device"},
      {"data", size.data},
      {"microbatches", microbatches},
      {"most_stages", run.pipeline},
      {"seconds", seconds},
      {"milliseconds_per_stage_microbatch", seconds * 1e3 / simulated},
      {"peak_rss_bytes", PeakRssBytes()},
      {"plan", plan.ok() ? absl::StrFormat("pp%d %s, %.2f s", plan->mesh.pp_size,
                                           plan->schedule.name, plan->predicted_step_seconds)
                         : std::string(plan.status().message())}};
}

}  // namespace

absl::Status ReportPlanning(const PublishedCases& cases, const PublishedOptions& options,
                            nlohmann::json& object) {
  MachineModel machine;
  ASSIGN_OR_RETURN(machine.hardware, ReadHardware(options.ClusterPath("h100-2048")));
  Table table(options.json(), {{"GPUs", "gpus", 6},
                               {"tensor", "tensor"},
                               {"group is", "tensor_group", 6},
                               {"data", "data", 5},
                               {"microbatches", "microbatches"},
                               {"most stages", "most_stages"},
                               {"seconds", "seconds", 8, 2},
                               {"ms/stage/microbatch", "milliseconds_per_stage_microbatch", 0, 3},
                               {"growth", "ratio", 0, 2},
                               {"peak MB", "peak_rss_bytes", 0, 0, 1e-6},
                               {"plan", "plan", 24}});
  double first = 0;
  for (const Size& size : kSizes) {
    ASSIGN_OR_RETURN(nlohmann::json row, Measure(size, RunOf(size, cases), machine));
    const double per_microbatch = row.at("milliseconds_per_stage_microbatch").get<double>();
    if (first == 0) first = per_microbatch;
    row["ratio"] = per_microbatch / first;
    row["limit"] = kMostGrowth;
    const bool is_small =
        size.gpus < kLimitedGpus || (row.at("seconds").get<double>() <= kMostSeconds &&
                                     row.at("peak_rss_bytes").get<double>() <= kMostBytes);
    const bool holds = is_small && per_microbatch <= kMostGrowth * first;
    row["holds"] = holds;
    table.Add(row, holds ? "" : "over");
    object["rows"].push_back(std::move(row));
  }
  if (!options.json()) {
    absl::PrintF("limits: %.0f s and %.0f MB for %d GPUs, growth %.2f\n\n", kMostSeconds,
                 kMostBytes * 1e-6, kLimitedGpus, kMostGrowth);
  }
  return absl::OkStatus();
}

}  // namespace takt::bench
