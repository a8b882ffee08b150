// SPDX-License-Identifier: Apache-2.0
#include "common/plan/plan.h"

#include <algorithm>
#include <functional>
#include <map>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/plan/candidate.h"
#include "common/schedule/generate.h"
#include "common/schedule/validator.h"
#include "common/sim/prove.h"

namespace takt::plan {
namespace {

constexpr std::string_view kAuto = "auto";
constexpr std::string_view kFileScheme = "file:";

// Returns the families to compare: the one that the job names, or all that compute what a single
// process would.
absl::StatusOr<std::vector<std::string>> FamiliesToTry(const std::string& asked) {
  std::vector<std::string> names, synchronous;
  for (const schedule::Family& family : schedule::Families()) {
    if (family.name == asked) return std::vector<std::string>{asked};
    names.emplace_back(family.name);
    if (family.updates == schedule::Updates::kFlush) synchronous.emplace_back(family.name);
  }
  if (asked == kAuto) return synchronous;
  return InvalidField(
      {.field = "parallelism.schedule",
       .value = asked,
       .rule = absl::StrCat("must be one of auto, ", absl::StrJoin(names, ", "), ", or file:PATH"),
       .fix = "see `takt schedule list`"});
}

std::int64_t PeakBytes(const Candidate& candidate) {
  return std::ranges::max_element(candidate.report.ranks, {}, &sim::RankReport::peak_stash_bytes)
      ->peak_stash_bytes;
}

// Returns the memory of the rank that needs most.
const MemoryBytes& Largest(const Candidate& candidate) {
  return *std::ranges::max_element(candidate.plan.memory, {}, &MemoryBytes::total);
}

bool Fits(const Candidate& candidate, const PlanOptions& options) {
  return options.worker_memory_bytes == 0 ||
         Largest(candidate).total() <= options.worker_memory_bytes;
}

// Predictions that are closer than this count as equal, because they are no more exact than that.
constexpr double kIndifference = 1.01;

// Candidates must not be empty.
Candidate TakeBest(std::vector<Candidate> candidates, const PlanOptions& options) {
  const auto fits = [&](const Candidate& c) { return Fits(c, options); };
  if (std::ranges::none_of(candidates, fits)) {
    // The closest one is returned, to say how far off it is.
    const auto needs = [](const Candidate& c) { return Largest(c).total(); };
    return std::move(*std::ranges::min_element(candidates, {}, needs));
  }
  std::erase_if(candidates, std::not_fn(fits));
  const auto makespan = [](const Candidate& c) { return c.report.makespan; };
  const double shortest = makespan(*std::ranges::min_element(candidates, {}, makespan));
  std::erase_if(candidates,
                [&](const Candidate& c) { return makespan(c) > shortest * kIndifference; });
  const auto key = [&](const Candidate& c) {
    return std::tuple(c.plan.mesh.pp_size, PeakBytes(c), c.report.peak_in_flight(), makespan(c));
  };
  return std::move(*std::ranges::min_element(candidates, {}, key));
}

// Adds what a search finds, over placements with one copy of the weights and numbers of chunks.
void AddSearched(const CandidateInputs& inputs, int pp_size, std::vector<Candidate>& candidates) {
  using schedule::Placement;
  const std::optional<int> asked = inputs.job.parallelism.chunks;
  for (const int num_chunks : {1, 2, 4}) {
    if (num_chunks != asked.value_or(num_chunks) || (pp_size == 1 && num_chunks > 1)) continue;
    for (const Placement placement : {Placement::kLoop, Placement::kV}) {
      if (placement == Placement::kV && num_chunks != 2) continue;
      for (Candidate& found : FromSearch(inputs, placement, pp_size, num_chunks))
        candidates.push_back(std::move(found));
    }
  }
}

// Returns the best family or searched schedule on `pp_size` ranks. Errors: the first family's, if
// none can be used.
absl::StatusOr<Candidate> BestOf(const CandidateInputs& inputs,
                                 const std::vector<std::string>& families, int pp_size) {
  std::vector<Candidate> candidates;
  absl::Status first_error;
  for (const std::string& family : families) {
    absl::StatusOr<Candidate> candidate = FromFamily(inputs, family, pp_size);
    // Two copies of the weights sum to other last bits, so a job gets them only if it asks for
    // them.
    const bool two_ways = candidate.ok() && families.size() > 1 &&
                          candidate->plan.schedule.placement == schedule::Placement::kBidirectional;
    if (two_ways) continue;
    // One rank gains nothing from chunks.
    const bool cut_in_vain = candidate.ok() && families.size() > 1 && pp_size == 1 &&
                             !inputs.job.parallelism.chunks &&
                             candidate->plan.schedule.num_stages > 1;
    if (cut_in_vain) continue;
    if (candidate.ok()) {
      candidates.push_back(*std::move(candidate));
    } else {
      first_error.Update(candidate.status());
    }
  }
  if (inputs.job.parallelism.schedule == kAuto) AddSearched(inputs, pp_size, candidates);
  if (candidates.empty()) return first_error;
  return TakeBest(std::move(candidates), inputs.options);
}

// A plan for each size would take too long. So many sizes that fit the workers are compared, of at
// most so many.
constexpr int kFittingSizes = 4, kMostSizes = 8;

// Returns the sizes of a pipeline that the job leaves open, those first that seem the fastest.
std::vector<int> PipelineSizes(const CandidateInputs& inputs) {
  const int by_layers =
      static_cast<int>(inputs.model.layers.size()) / inputs.job.parallelism.chunks.value_or(1);
  const int largest = std::min(by_layers, inputs.options.max_workers / inputs.dp_size);
  std::multimap<double, int> by_estimate;
  for (int pp_size = 1; pp_size <= std::max(1, largest); ++pp_size)
    by_estimate.emplace(EstimateSeconds(inputs, pp_size), pp_size);
  std::vector<int> sizes;
  for (const auto& [estimate, pp_size] : by_estimate) sizes.push_back(pp_size);
  return sizes;
}

absl::StatusOr<Candidate> Choose(const CandidateInputs& inputs) {
  const config::Parallelism& asked = inputs.job.parallelism;
  if (asked.schedule.starts_with(kFileScheme)) return FromFile(inputs);
  ASSIGN_OR_RETURN(const std::vector<std::string> families, FamiliesToTry(asked.schedule));
  if (asked.pipeline.has_value()) return BestOf(inputs, families, *asked.pipeline);
  absl::Status first_error;
  std::vector<Candidate> candidates;
  int num_fitting = 0;
  for (const int pp_size : PipelineSizes(inputs)) {
    absl::StatusOr<Candidate> best = BestOf(inputs, families, pp_size);
    if (!best.ok()) {
      first_error.Update(best.status());
      continue;
    }
    num_fitting += Fits(*best, inputs.options) ? 1 : 0;
    candidates.push_back(*std::move(best));
    if (num_fitting == kFittingSizes || candidates.size() == kMostSizes) break;
  }
  if (candidates.empty()) return first_error;
  return TakeBest(std::move(candidates), inputs.options);
}

// Chooses the least that is computed again for the plan to fit the workers, unless the job says.
absl::StatusOr<Candidate> ChooseWhatIsRecomputed(CandidateInputs inputs) {
  using enum model::Recompute;
  const std::vector<model::Recompute>& asked = inputs.job.parallelism.recompute;
  if (!asked.empty()) {
    inputs.recompute = asked;
    return Choose(inputs);
  }
  absl::StatusOr<Candidate> best = Choose(inputs);
  if (inputs.job.model.family == model::Family::kEmulated) return best;
  for (const model::Recompute mode : {kSelective, kFull}) {
    if (!best.ok() || Fits(*best, inputs.options)) break;
    inputs.recompute = {mode};
    best = Choose(inputs);
  }
  return best;
}

absl::Status CheckMemory(const Candidate& candidate, const PlanOptions& options) {
  if (Fits(candidate, options)) return absl::OkStatus();
  const auto recomputes_all = [](const mesh::Stage& stage) {
    return stage.recompute == model::Recompute::kFull;
  };
  const bool more = !std::ranges::all_of(candidate.plan.partition, recomputes_all);
  return InvalidField({.field = "parallelism.pipeline",
                       .value = absl::StrCat(candidate.plan.schedule.num_ranks()),
                       .rule = absl::StrCat("needs more memory than a worker has for a rank (",
                                            FormatBytes(options.worker_memory_bytes),
                                            "): ", ToString(Largest(candidate))),
                       .fix = absl::StrCat("use more stages or smaller microbatches",
                                           more ? ", or parallelism.recompute: full" : "")});
}

absl::Status CheckBatch(const config::JobSpec& job, int dp_size) {
  if (job.DividesBatch(dp_size)) return absl::OkStatus();
  return InvalidField(
      {.field = "batch.global",
       .value = absl::StrCat(job.global_batch),
       .rule = absl::StrCat("must be divisible by batch.microbatch x parallelism.data = ",
                            std::int64_t{job.microbatch} * dp_size),
       .fix = "change one of them"});
}

// This bounds a plan's time and size. Its programs list an instruction for each microbatch and
// stage, and in it each layer of the stage. A client waits while the plan is made, which takes a
// few seconds at most, and a worker's program is sent in one message.
constexpr std::int64_t kMaxLayerPasses = std::int64_t{1} << 18;

absl::Status CheckSize(const config::JobSpec& job, const model::Model& model, int dp_size) {
  const auto layers = static_cast<std::int64_t>(model.layers.size());
  const int microbatches = job.MicrobatchesPerStep(dp_size);
  if (layers * microbatches <= kMaxLayerPasses) return absl::OkStatus();
  return InvalidField(
      {.field = "batch.microbatch",
       .value = absl::StrCat(job.microbatch),
       .rule = absl::StrCat("makes ", microbatches, " microbatches a step; with ", layers,
                            " layers at most ", kMaxLayerPasses / layers, " are possible"),
       .fix = "use larger microbatches"});
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

}  // namespace

absl::StatusOr<Plan> MakePlan(const config::JobSpec& job, const PlanOptions& options) {
  TAKT_CHECK(options.max_workers >= 0 && options.matmul_flops_per_second > 0);
  const int dp_size = job.parallelism.data.value_or(1);
  RETURN_IF_ERROR(CheckBatch(job, dp_size));
  ASSIGN_OR_RETURN(
      model::Model model,
      model::BuildModel(job.model, job.microbatch, config::PrecisionsOf(job, options.device)));
  RETURN_IF_ERROR(CheckSize(job, model, dp_size));
  ASSIGN_OR_RETURN(
      Candidate best,
      ChooseWhatIsRecomputed({.job = job, .model = model, .options = options, .dp_size = dp_size}));
  RETURN_IF_ERROR(CheckMemory(best, options));
  Plan& plan = best.plan;
  if (!plan.validation_programs.empty()) RETURN_IF_ERROR(sim::Prove(plan.validation_programs));
  plan.model = std::move(model);
  plan.warnings = schedule::Warnings(plan.schedule);
  plan.warnings.insert(plan.warnings.begin(), job.warnings.begin(), job.warnings.end());
  if (!job.exact && std::ranges::none_of(plan.programs, program::MergesWeightGrads)) {
    plan.warnings.push_back(absl::StrCat("exact: false has no effect under ", plan.schedule.name,
                                         ", where no two W of a stage follow each other"));
  }
  return std::move(plan);
}

std::string ToString(const Plan& plan) {
  std::string text =
      absl::StrFormat("pipeline %d x data %d, schedule %s, %d microbatches\n", plan.mesh.pp_size,
                      plan.mesh.dp_size, plan.schedule.name, plan.schedule.num_microbatches);
  for (const mesh::Stage& stage : plan.partition) {
    absl::StrAppendFormat(&text, "stage %d on pp rank %d: layers %d to %d of %d\n",
                          stage.id.value(), stage.pp_rank.value(), stage.first_layer.value(),
                          stage.last_layer.value() - 1, plan.model.layers.size());
    if (stage.recompute != model::Recompute::kNone) {
      absl::StrAppend(&text, "  recomputes ", std::string(model::Name(stage.recompute)), "\n");
    }
  }
  AppendMergedWeightGrads(plan, text);
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
