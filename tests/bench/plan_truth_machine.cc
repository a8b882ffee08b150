// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/plan_truth_machine.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/model/model.h"
#include "common/plan/offers.h"
#include "common/profile/learn.h"
#include "common/profile/probe.h"
#include "common/schedule/text.h"
#include "tests/bench/job_run.h"
#include "tests/bench/plan_truth_jobs.h"
#include "tests/bench/process_group.h"
#include "worker/backend/backend.h"
#include "worker/backend/cpu/cpu_backend.h"

namespace takt::bench {
namespace {

using config::DeviceKind;

constexpr std::int64_t kWarmupSteps = 3;
constexpr int kFewestSteps = 5;
constexpr double kMostRunSeconds = 6;  // about, of the steps that count

// Measures in a process of its own, because the library starts threads.
absl::StatusOr<MatmulRates> MeasureRates(int threads) {
  const auto measure = [threads](Rank, transport::Rendezvous&) -> absl::StatusOr<std::string> {
    ASSIGN_OR_RETURN(const std::unique_ptr<backend::Backend> backend,
                     backend::CreateCpuBackend({.threads = threads}));
    ASSIGN_OR_RETURN(const MatmulRates rates, backend::MeasureMatmuls(*backend));
    return nlohmann::json::array({rates.f32, rates.bf16}).dump();
  };
  ASSIGN_OR_RETURN(const std::vector<std::string> texts, RunProcesses(1, measure));
  const nlohmann::json rates = nlohmann::json::parse(texts.front());
  return MatmulRates{.f32 = rates.at(0).get<double>(), .bf16 = rates.at(1).get<double>()};
}

}  // namespace

config::JobSpec Pinned(config::JobSpec job, const plan::Plan& plan) {
  config::Parallelism& p = job.parallelism;
  p.pipeline = plan.mesh.pp_size;
  p.chunks.reset();
  p.group.reset();
  p.schedule = "file:planned.csv";
  p.schedule_csv = schedule::FormatCsv(plan.schedule);
  p.vocabulary =
      plan.vocabulary_ends.empty() ? config::Vocabulary::kLast : config::Vocabulary::kSpread;
  p.stage_layers.clear();
  p.recompute.clear();
  for (const mesh::Stage& stage : plan.partition) {
    int blocks = 0;
    for (int i = stage.first_layer.value(); i < stage.last_layer.value(); ++i)
      blocks += plan.model.layers[i].block >= 0 ? 1 : 0;
    p.stage_layers.push_back(blocks);
    p.recompute.push_back(stage.recompute);
  }
  return job;
}

plan::Host TruthMachine::HostOf(const config::JobSpec& job) {
  return {.machine = "this machine", .threads = ThreadsOf(job), .workers = RanksOf(job)};
}

plan::PlanOptions TruthMachine::OptionsFor(const config::JobSpec& job,
                                           std::shared_ptr<const profile::Profile> profile) {
  return {.max_workers = RanksOf(job), .profile = std::move(profile), .host = HostOf(job)};
}

absl::StatusOr<plan::PlanOptions> TruthMachine::OptionsWithoutProfile(const config::JobSpec& job) {
  ASSIGN_OR_RETURN(const double rate, FlopsPerSecond(job));
  return plan::PlanOptions{.max_workers = RanksOf(job), .matmul_flops_per_second = rate};
}

absl::StatusOr<double> TruthMachine::FlopsPerSecond(const config::JobSpec& job) {
  const int threads = ThreadsOf(job);
  if (!rates_.contains(threads)) {
    ASSIGN_OR_RETURN(rates_[threads], MeasureRates(threads));
  }
  return plan::FlopsPerSecond(job, {.matmul_rates = rates_.at(threads)}, DeviceKind::kCpu);
}

absl::Status TruthMachine::Learn(const config::JobSpec& job, int num_ranks,
                                 profile::Profile& profile) {
  const profile::Conditions conditions =
      HostOf(job).ConditionsOf(num_ranks, job.parallelism.threads, DeviceKind::kCpu);
  if (job.model.family != model::Family::kEmulated) {
    ASSIGN_OR_RETURN(const double rate, FlopsPerSecond(job));
    const config::JobSpec probe =
        profile::ProbeJob(job, {.num_ranks = num_ranks, .flops_per_second = rate});
    RETURN_IF_ERROR(RunAndLearn(probe, conditions, profile));
  }
  if (num_ranks == 1) return absl::OkStatus();
  ASSIGN_OR_RETURN(const model::Model model, model::BuildModel(job.model, job.microbatch));
  const std::int64_t bytes = model.layers.front().cost.output_bytes;
  return RunAndLearn(profile::MessageProbeJob(job, num_ranks, bytes), conditions, profile);
}

absl::Status TruthMachine::RunAndLearn(const config::JobSpec& job,
                                       const profile::Conditions& conditions,
                                       profile::Profile& profile) const {
  ASSIGN_OR_RETURN(const plan::Plan plan,
                   plan::MakePlan(job, {.max_workers = conditions.ranks_per_host}));
  ASSIGN_OR_RETURN(const JobRun run, RunJob(job, plan, conditions.threads, data_root_));
  const profile::RankPlace place{.conditions = conditions, .host = "here"};
  const std::vector<profile::RankPlace> places(plan.mesh.size(), place);
  return profile::Learn(run.trace,
                        {.model = plan.model,
                         .partition = plan.partition,
                         .places = places,
                         .vocabulary_ends = plan.vocabulary_ends},
                        /*weight=*/1, profile);
}

absl::StatusOr<std::vector<double>> TruthMachine::StepSeconds(config::JobSpec job,
                                                              const plan::Plan& plan,
                                                              int steps) const {
  const double affordable = kMostRunSeconds / plan.predicted_step_seconds;
  if (affordable < steps) steps = std::max(static_cast<int>(affordable), kFewestSteps);
  job.steps = kWarmupSteps + steps;
  ASSIGN_OR_RETURN(const JobRun run, RunJob(job, plan, ThreadsOf(job), data_root_));
  std::vector<double> seconds = run.SecondsAfter(kWarmupSteps);
  if (seconds.empty())
    return absl::InternalError(absl::StrCat("job ", job.name, ": no step was traced"));
  return seconds;
}

}  // namespace takt::bench
