// SPDX-License-Identifier: Apache-2.0
#include "common/plan/plan.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/counted.h"
#include "common/base/status.h"
#include "common/plan/ranking.h"
#include "common/plan/stage_costs.h"
#include "common/plan/ways.h"
#include "common/schedule/validator.h"
#include "common/sim/prove.h"

namespace takt::plan {
namespace {

absl::Status CheckMemory(const config::JobSpec& job, const Candidate& candidate,
                         const PlanOptions& options) {
  if (Fits(candidate, options)) return absl::OkStatus();
  const auto recomputes_all = [](const mesh::Stage& stage) {
    return stage.recompute == model::Recompute::kFull;
  };
  const Plan& plan = candidate.plan;
  const bool may_share = plan.mesh.num_replicas() > 1 && !SharesOptimizer(plan) &&
                         plan.schedule.updates == schedule::Updates::kFlush &&
                         job.parallelism.expert == 1;
  const bool more = !std::ranges::all_of(candidate.plan.partition, recomputes_all);
  return InvalidField({.field = "parallelism.pipeline",
                       .value = absl::StrCat(candidate.plan.schedule.num_ranks()),
                       .rule = absl::StrCat("needs more memory than a worker has for a rank (",
                                            FormatMemory(options.worker_memory_bytes),
                                            "): ", ToString(Largest(candidate, options))),
                       .fix = absl::StrCat("use more stages or smaller microbatches",
                                           more ? ", or parallelism.recompute: full" : "",
                                           may_share ? ", or parallelism.shard: optimizer" : "")});
}

// Says how many workers the mesh needs and how many there are.
std::string LackOfWorkers(const mesh::Mesh& mesh, int max_workers) {
  return absl::StrCat("needs ", Counted(mesh.size(), "worker"), ", and there ",
                      max_workers == 1 ? "is " : "are ", max_workers);
}

// Refuses a mesh that is too large for the workers. The error is about its longest axis.
absl::Status TooFewWorkers(const mesh::Mesh& mesh, int max_workers) {
  const std::pair<const char*, int> axes[] = {{"parallelism.pipeline", mesh.pp_size},
                                              {"parallelism.data", mesh.dp_size},
                                              {"parallelism.tensor", mesh.tp_size},
                                              {"parallelism.context", mesh.cp_size}};
  const auto& [field, size] =
      *std::ranges::max_element(axes, {}, &std::pair<const char*, int>::second);
  return InvalidField({.field = field,
                       .value = absl::StrCat(size),
                       .rule = absl::StrCat("makes a mesh of ", mesh::ToString(mesh), ", which ",
                                            LackOfWorkers(mesh, max_workers)),
                       .fix = "use fewer ranks or more workers"});
}

void AppendMergedWeightGrads(const Plan& plan, std::string& text) {
  int all = 0, instructions = 0;
  for (const program::Program& program : plan.programs) {
    for (const program::Instruction& each : program.body) {
      if (each.op != program::Op::kWeightGrad) continue;
      all += each.num_microbatches;
      ++instructions;
    }
  }
  if (instructions == all) return;
  absl::StrAppend(&text, "of ", all,
                  " W of a step, those that follow each other are one: ", instructions,
                  " are left (exact: false)\n");
}

void AppendWords(const Plan& plan, std::string& text) {
  for (PpRank rank(0); rank.value() < std::ssize(plan.vocabulary_ends); ++rank) {
    const mesh::WordRun run = mesh::WordsOf(plan.vocabulary_ends, rank, plan.model.config.vocab);
    if (run.words == 0) continue;
    absl::StrAppend(&text, "pp rank ", rank.value(), " has words ", run.first, " to ",
                    run.first + run.words - 1, "\n");
  }
}

double CheckpointPause(const CandidateInputs& inputs, const Plan& plan) {
  std::int64_t largest = 0;
  for (const MemoryBytes& rank : plan.memory)
    largest = std::max(largest, rank[MemoryKind::kSnapshot]);
  return SnapshotSeconds(inputs, plan.mesh.pp_size, largest);
}

// The ranks that split layers or share experts meet several times in each layer, which networks are
// too slow for.
absl::Status WarnOfHosts(const CandidateInputs& inputs, Plan& plan) {
  if (TensorGroupsFitHosts(inputs)) return absl::OkStatus();
  const int sharers = SharersOfLayers(inputs.model), room = inputs.options.host.room();
  const char* const field = inputs.model.experts.shares() ? "expert" : "tensor";
  int fits = std::min(sharers, room);
  while (sharers % fits != 0) --fits;
  ASSIGN_OR_RETURN(const double seconds, StepOnOneHost(inputs, plan));
  plan.warnings.push_back(absl::StrFormat(
      "parallelism.%s is %d, and hosts have %s for the job: a step takes %.4g s, and "
      "%.4g s if each %s group is on one host; use larger hosts, or parallelism.%s: %d",
      field, sharers, Counted(room, "worker"), plan.predicted_step_seconds, seconds, field, field,
      fits));
  return absl::OkStatus();
}

// Makes the best candidate a plan that workers can execute.
absl::StatusOr<Plan> Complete(const CandidateInputs& inputs, Candidate best) {
  const config::JobSpec& job = inputs.job;
  RETURN_IF_ERROR(CheckMemory(job, best, inputs.options));
  Plan& plan = best.plan;
  if (!plan.validation_programs.empty()) RETURN_IF_ERROR(sim::Prove(plan.validation_programs));
  plan.model = inputs.model;
  plan.warnings = schedule::Warnings(plan.schedule);
  plan.warnings.insert(plan.warnings.begin(), job.warnings.begin(), job.warnings.end());
  if (job.parallelism.SharesOptimizer() && !SharesOptimizer(plan)) {
    const bool all = job.parallelism.shard == config::Shard::kParameters;
    plan.warnings.push_back(absl::StrCat("parallelism.shard: ", all ? "parameters" : "optimizer",
                                         " has no effect: no two ranks have the same layers"));
  }
  RETURN_IF_ERROR(WarnOfHosts(inputs, plan));
  // Where activations are in bf16, which is on GPUs, attention is not exact either.
  if (!job.exact && plan.model.precisions.activations == model::Precision::kF32 &&
      std::ranges::none_of(plan.programs, program::MergesWeightGrads)) {
    const bool rounds = plan.model.precisions.residual == model::Precision::kBf16;
    plan.warnings.push_back(rounds ? "exact: false has no effect with residual: bf16"
                                   : absl::StrCat("exact: false has no effect under ",
                                                  plan.schedule.name,
                                                  ", where no two W of a stage follow each other"));
  }
  return std::move(plan);
}

}  // namespace

std::vector<int> StageLayers(const model::Model& model, const mesh::Partition& partition) {
  std::vector<int> counts;
  for (const mesh::Stage& stage : partition) {
    const auto begin = model.layers.begin() + stage.first_layer.value();
    const auto end = model.layers.begin() + stage.last_layer.value();
    counts.push_back(static_cast<int>(
        std::count_if(begin, end, [](const model::Layer& layer) { return layer.block >= 0; })));
  }
  return counts;
}

profile::Conditions Host::ConditionsOf(int num_ranks, std::optional<int> job_threads,
                                       config::DeviceKind device) const {
  if (device == config::DeviceKind::kCuda)
    return {.machine = machine, .threads = 0, .ranks_per_host = 1};
  return {.machine = machine,
          .threads = job_threads.value_or(threads),
          .ranks_per_host = std::min(num_ranks, room())};
}

absl::StatusOr<Plan> MakePlan(const config::JobSpec& job, const PlanOptions& options) {
  ASSIGN_OR_RETURN(JobInputs inputs, JobInputs::Create(job, options));
  ASSIGN_OR_RETURN(Ranking ranking, RankCandidates(inputs, 1));
  Candidate& best = ranking.candidates.front();
  const CandidateInputs of_best = inputs.Of(best);
  return Complete(of_best, std::move(best));
}

absl::StatusOr<Forecasts> MakeForecasts(const config::JobSpec& job, const PlanOptions& options,
                                        int top) {
  ASSIGN_OR_RETURN(JobInputs inputs, JobInputs::Create(job, options));
  ASSIGN_OR_RETURN(Ranking ranking, RankCandidates(inputs, static_cast<std::size_t>(top)));
  Forecasts forecasts{.refused = std::move(ranking.refused),
                      .fits = CheckMemory(job, ranking.candidates.front(), options)};
  if (!forecasts.fits.ok()) return forecasts;
  // A job that names a larger mesh may be submitted, but waits for more workers than there are.
  std::vector<Refusal> too_large;
  for (const Candidate& candidate : ranking.candidates) {
    const mesh::Mesh& mesh = candidate.plan.mesh;
    if (mesh.size() <= options.max_workers) continue;
    too_large.push_back(RefusalOf(inputs, candidate, LackOfWorkers(mesh, options.max_workers)));
  }
  if (too_large.size() == ranking.candidates.size())
    forecasts.fits = TooFewWorkers(too_large.front().mesh, options.max_workers);
  forecasts.refused.insert(forecasts.refused.begin(), too_large.begin(), too_large.end());
  for (Candidate& candidate : ranking.candidates) {
    if (candidate.plan.mesh.size() > options.max_workers) continue;
    const CandidateInputs its = inputs.Of(candidate);
    ASSIGN_OR_RETURN(const Parts parts, PartsOf(its, candidate));
    AddOrigins(its, candidate.plan.partition, candidate.plan.vocabulary_ends, forecasts.origins);
    candidate.plan.model = its.model;
    const double pause = CheckpointPause(its, candidate.plan);
    forecasts.candidates.push_back(
        {.plan = std::move(candidate.plan), .parts = parts, .checkpoint_pause_seconds = pause});
  }
  return forecasts;
}

std::string ToString(const Plan& plan) {
  std::string text =
      absl::StrFormat("pipeline %d x data %d%s, schedule %s, %s\n", plan.mesh.pp_size,
                      plan.mesh.dp_size, mesh::OtherAxes(plan.mesh), plan.schedule.name,
                      Counted(plan.schedule.num_microbatches, "microbatch"));
  for (const mesh::Stage& stage : plan.partition) {
    absl::StrAppendFormat(&text, "stage %d on pp rank %d: layers %d to %d of %d\n",
                          stage.id.value(), stage.pp_rank.value(), stage.first_layer.value(),
                          stage.last_layer.value() - 1, plan.model.layers.size());
    if (stage.recompute != model::Recompute::kNone) {
      absl::StrAppend(&text, "  recomputes ", std::string(model::Name(stage.recompute)), "\n");
    }
  }
  AppendWords(plan, text);
  AppendMergedWeightGrads(plan, text);
  if (OverlapsSteps(plan)) text += "steps overlap: the update waits for no other rank\n";
  absl::StrAppendFormat(&text, "predicted step %.6g s, bubble %.1f %%\n",
                        plan.predicted_step_seconds, 100 * plan.predicted_bubble_fraction);
  for (std::size_t rank = 0; rank < plan.memory.size(); ++rank) {
    absl::StrAppend(&text, "pp rank ", rank, " needs ", ToString(plan.memory[rank]), "\n");
  }
  for (const std::string& warning : plan.warnings)
    absl::StrAppend(&text, "warning: ", warning, "\n");
  return text;
}

}  // namespace takt::plan
