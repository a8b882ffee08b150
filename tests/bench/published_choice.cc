// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/published_choice.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace takt::bench {
namespace {

constexpr int kLargestMicrobatch = 64;
constexpr std::size_t kWaysToSearch = 3;

// Plans the run's work in one way. Errors: it cannot be planned, or does not fit.
absl::StatusOr<plan::Plan> PlanWay(const PublishedRun& run, const MachineModel& machine,
                                   const Way& way, std::string_view schedule,
                                   std::optional<int> chunks) {
  config::JobSpec job = OpenJobOf(run);
  job.microbatch = way.microbatch;
  job.parallelism.pipeline = way.pipeline;
  job.parallelism.data = way.data;
  job.parallelism.chunks = chunks;
  job.parallelism.schedule = std::string(schedule);
  const DeviceGroup group{.tensor = run.tensor, .context_parallel = run.context_parallel};
  ASSIGN_OR_RETURN(const plan::PlanOptions options,
                   OptionsOn(machine, job, group, way.data * way.pipeline));
  return plan::MakePlan(job, options);
}

std::string NameOf(const plan::Plan& plan, const Way& way) {
  const int chunks = plan.schedule.num_stages / plan.mesh.pp_size;
  std::string name = absl::StrCat("dp", plan.mesh.dp_size, " pp", plan.mesh.pp_size);
  if (chunks > 1) absl::StrAppend(&name, "x", chunks);
  absl::StrAppend(&name, " mb", way.microbatch, " ", plan.schedule.name);
  const model::Recompute mode = plan.partition.front().recompute;
  const auto differs = [&](const mesh::Stage& stage) { return stage.recompute != mode; };
  if (std::ranges::any_of(plan.partition, differs)) {
    name += ", some recompute";
  } else if (mode != model::Recompute::kNone) {
    absl::StrAppend(&name, ", recompute ", std::string(model::Name(mode)));
  }
  return name;
}

// Returns the ways whose 1f1b is fastest, and the run's own one, of those that fit.
std::vector<Way> WaysToSearch(const PublishedRun& run, const MachineModel& machine) {
  std::vector<std::pair<double, Way>> fitting;
  for (const Way& way : WaysFor(run)) {
    const auto plan = PlanWay(run, machine, way, "1f1b", std::nullopt);
    if (plan.ok()) fitting.emplace_back(plan->predicted_step_seconds, way);
  }
  std::ranges::stable_sort(fitting, {}, &std::pair<double, Way>::first);
  const Way own{.data = run.data, .pipeline = run.pipeline, .microbatch = run.microbatch};
  std::vector<Way> ways;
  for (std::size_t i = 0; i < fitting.size(); ++i) {
    if (i < kWaysToSearch || fitting[i].second == own) ways.push_back(fitting[i].second);
  }
  return ways;
}

}  // namespace

std::vector<Way> WaysFor(const PublishedRun& run) {
  std::vector<int> microbatches = {run.microbatch};
  for (int size = 1; size <= kLargestMicrobatch; size *= 2) {
    if (size != run.microbatch) microbatches.push_back(size);
  }
  const int most_stages = std::min(run.devices(), run.model.layers + 2);
  std::vector<Way> ways;
  for (int pipeline = 1; pipeline <= most_stages; ++pipeline) {
    if (run.devices() % pipeline != 0) continue;
    const int data = run.devices() / pipeline;
    for (const int microbatch : microbatches) {
      const std::int64_t part = std::int64_t{microbatch} * data;
      if (run.global_batch % part == 0)
        ways.push_back({.data = data, .pipeline = pipeline, .microbatch = microbatch});
    }
  }
  return ways;
}

std::optional<ChosenWay> ChooseFor(const PublishedRun& run, const MachineModel& machine) {
  std::vector<std::optional<int>> chunks = {std::nullopt};
  if (run.chunks > 1) chunks.emplace_back(run.chunks);
  std::optional<ChosenWay> best;
  for (const Way& way : WaysToSearch(run, machine)) {
    for (const std::optional<int>& asked : chunks) {
      const auto plan = PlanWay(run, machine, way, "auto", asked);
      if (!plan.ok() || (best && best->seconds <= plan->predicted_step_seconds)) continue;
      best = ChosenWay{.name = NameOf(*plan, way), .seconds = plan->predicted_step_seconds};
    }
  }
  return best;
}

}  // namespace takt::bench
