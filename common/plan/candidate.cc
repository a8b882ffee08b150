// SPDX-License-Identifier: Apache-2.0
#include "common/plan/candidate.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/counted.h"
#include "common/base/status.h"
#include "common/layout/rank_layout.h"
#include "common/layout/slot_layout.h"
#include "common/layout/vocabulary_layout.h"
#include "common/plan/copies.h"
#include "common/plan/schedule_rules.h"
#include "common/plan/spread.h"
#include "common/plan/stage_costs.h"
#include "common/plan/worker_programs.h"
#include "common/program/forward_only.h"
#include "common/program/lowering.h"
#include "common/program/remove_barrier.h"
#include "common/schedule/generate.h"
#include "common/schedule/text.h"
#include "common/schedule/validator.h"
#include "common/search/search.h"
#include "common/sim/executed.h"
#include "common/sim/prove.h"

namespace takt::plan {
namespace {

// A search simulates orders with this many actions in all. That takes about a tenth of a second,
// whatever the size, and ends long before the search's own time limit, so that a plan is the same
// every time.
constexpr std::int64_t kSearchedActions = 10'000'000;

// Without a flush, and where steps overlap, the time of a step counts once the pipeline is full. It
// is full after so many steps, of which the first half is left out where they overlap.
constexpr int kStepsInARow = 4, kOverlappedSteps = 8;

// Returns whether W of several microbatches may be computed together. Each then reads f32 that
// layers passed on.
bool MayMerge(const config::JobSpec& job) {
  return !job.exact && job.residual == model::Precision::kF32;
}

bool IsAsynchronous(const schedule::Schedule& schedule) {
  return schedule.updates != schedule::Updates::kFlush;
}

int Microbatches(const CandidateInputs& inputs) {
  return inputs.job.global_batch / (inputs.model.microbatch * inputs.dp_size);
}

// Renames what generators complain about: they have names of their own for what a job spec names.
absl::Status InJobTerms(const absl::Status& status, const config::JobSpec& job) {
  std::vector<FieldError> errors = FieldErrorsOf(status);
  if (errors.empty()) return status;
  for (FieldError& error : errors) {
    if (error.field == "microbatches") {
      error.field = "batch.global";
      error.rule = absl::StrCat("makes ", error.value, " microbatches a step; ", error.rule);
      error.value = absl::StrCat(job.global_batch);
    } else if (error.field == "ranks") {
      error.field = "parallelism.pipeline";
    } else if (error.field == "chunks" || error.field == "group") {
      error.field = absl::StrCat("parallelism.", error.field);
    }
  }
  return InvalidFields(std::move(errors));
}

absl::Status SetRecompute(const std::vector<model::Recompute>& modes, mesh::Partition& partition) {
  if (modes.size() != 1 && modes.size() != partition.size()) {
    const auto name = [](std::string* out, model::Recompute mode) {
      out->append(model::Name(mode));
    };
    return InvalidField({.field = "parallelism.recompute",
                         .value = absl::StrCat("[", absl::StrJoin(modes, ", ", name), "]"),
                         .rule = absl::StrCat("must be one mode, or one for each of the ",
                                              Counted(std::ssize(partition), "stage")),
                         .fix = "correct the list"});
  }
  for (mesh::Stage& stage : partition) {
    stage.recompute = modes.size() == 1 ? modes[0] : modes[stage.id.value()];
  }
  return absl::OkStatus();
}

// layer_seconds: as in MakePartition.
absl::StatusOr<mesh::Partition> PartitionOf(const CandidateInputs& inputs, int num_stages,
                                            schedule::Placement placement, int pp_size,
                                            const std::vector<double>& layer_seconds) {
  ASSIGN_OR_RETURN(mesh::Partition partition,
                   MakePartition(inputs.model, num_stages, inputs.job.parallelism.stage_layers,
                                 placement, pp_size, layer_seconds));
  RETURN_IF_ERROR(SetRecompute(inputs.recompute, partition));
  return partition;
}

program::LowerOptions MakeLowerOptions(const CandidateInputs& inputs,
                                       const mesh::Partition& partition,
                                       const mesh::VocabularyEnds& vocabulary_ends) {
  program::LowerOptions options{.reduce_gradients = inputs.num_replicas() * inputs.leaves() > 1,
                                .separate_documents = inputs.model.separate_documents,
                                .merge_weight_grads = MayMerge(inputs.job)};
  for (const mesh::Stage& stage : partition) {
    options.stages.push_back(layout::ShapeOf(
        inputs.model, stage,
        vocabulary_ends.empty() ? layout::HeadLogits::kStashed : layout::HeadLogits::kSpread));
    const model::Layer& last = inputs.model.layers[stage.last_layer.value() - 1];
    options.tied_embeddings |= !last.tied_parameters.empty();
  }
  if (!vocabulary_ends.empty())
    options.vocabulary = layout::ShapeOfVocabulary(inputs.model, vocabulary_ends);
  return options;
}

// Returns how the programs of a schedule are made over this partition.
program::LowerOptions MakeLowerOptions(const CandidateInputs& inputs,
                                       const schedule::Schedule& schedule,
                                       const mesh::Partition& partition,
                                       const mesh::VocabularyEnds& vocabulary_ends) {
  program::LowerOptions options = MakeLowerOptions(inputs, partition, vocabulary_ends);
  const bool two_copies = schedule.placement == schedule::Placement::kBidirectional;
  options.shard_optimizer =
      inputs.shares && !IsAsynchronous(schedule) && (inputs.num_replicas() > 1 || two_copies);
  options.free_weights = inputs.frees && options.shard_optimizer;
  return options;
}

// Returns the programs of a validation pass. A schedule without a flush goes forward as one with it
// does.
absl::StatusOr<std::vector<program::Program>> ForwardPrograms(const CandidateInputs& inputs,
                                                              const Plan& plan) {
  if (!IsAsynchronous(plan.schedule)) return program::ForwardOnly(plan.programs);
  schedule::Schedule flushed = plan.schedule;
  flushed.updates = schedule::Updates::kFlush;
  ASSIGN_OR_RETURN(const std::vector<program::Program> programs,
                   program::Lower(flushed, MakeLowerOptions(inputs, plan.partition, {})));
  return program::ForwardOnly(programs);
}

// Makes the candidate of a schedule that spreads the words, or is to spread them.
absl::StatusOr<Candidate> FromSpread(const CandidateInputs& inputs,
                                     const schedule::Schedule& schedule,
                                     mesh::Partition partition) {
  RETURN_IF_ERROR(CheckSpread(inputs, schedule));
  mesh::VocabularyEnds ends = DealBlocks(inputs, partition);
  ASSIGN_OR_RETURN(schedule::Schedule spread, WithVocabulary(inputs, schedule, partition, ends));
  return FromPartition(inputs, std::move(spread), std::move(partition), std::move(ends));
}

// Without a flush, the cut decides which weights a microbatch meets. So it does not depend on what
// was measured, and losses are the same wherever and whenever the job runs.
absl::StatusOr<Candidate> FromSchedule(const CandidateInputs& inputs, schedule::Schedule schedule) {
  RETURN_IF_ERROR(CheckSchedule(inputs, schedule));
  const int pp_size = schedule.num_ranks();
  const std::vector<double> layer_seconds =
      IsAsynchronous(schedule) ? std::vector<double>() : LayerSeconds(inputs, pp_size);
  ASSIGN_OR_RETURN(
      mesh::Partition partition,
      PartitionOf(inputs, schedule.num_stages, schedule.placement, pp_size, layer_seconds));
  if (inputs.spread && pp_size > 1) return FromSpread(inputs, schedule, std::move(partition));
  return FromPartition(inputs, std::move(schedule), std::move(partition));
}

// Returns what each rank will need.
std::vector<MemoryBytes> MemoryOf(const CandidateInputs& inputs, const Plan& plan) {
  std::vector<MemoryBytes> memory;
  const bool validates = !plan.validation_programs.empty();
  const CopyCounts copies = CopiesKept({.job = inputs.job,
                                        .schedule = plan.schedule,
                                        .mesh = plan.mesh,
                                        .device = inputs.options.device,
                                        .shares = SharesOptimizer(plan)});
  const int num_writers = SharesOptimizer(plan) ? inputs.num_replicas() : 1;
  const std::int64_t copy_bytes =
      (copies.own + copies.peer) * LargestCopyBytes(inputs.model, plan.partition, num_writers);
  for (std::size_t rank = 0; rank < plan.programs.size(); ++rank) {
    memory.push_back(
        layout::LayOutRank({.model = inputs.model,
                            .partition = plan.partition,
                            .program = plan.programs[rank],
                            .validation = validates ? &plan.validation_programs[rank] : nullptr,
                            .saves = inputs.job.checkpoint.has_value(),
                            .num_replicas = inputs.num_replicas(),
                            .copy_bytes = copy_bytes,
                            .device = inputs.options.device,
                            .vocabulary_ends = plan.vocabulary_ends,
                            .leaves = inputs.leaves()})
            .bytes());
  }
  const std::int64_t room = inputs.options.worker_memory_bytes;
  const auto too_large = [&](const MemoryBytes& bytes) {
    return CountedBytes(bytes, inputs.options.device) > room;
  };
  // Copies that were not asked for are given up before the job needs more workers, or computes
  // more.
  if (room > 0 && !AsksForCopies(inputs.job) && std::ranges::any_of(memory, too_large)) {
    for (MemoryBytes& bytes : memory) bytes[MemoryKind::kCopies] = 0;
  }
  return memory;
}

// Returns which blocks of words each rank has, if the words are spread.
mesh::VocabularyEnds EndsOf(const CandidateInputs& inputs, const mesh::Partition& partition,
                            int pp_size) {
  if (!inputs.spread || pp_size == 1) return {};
  return DealBlocks(inputs, partition);
}

// Returns the costs of one stage a rank, for a family that uses them. Other families ignore costs
// and get none.
absl::StatusOr<cost::Costs> CostsToGenerateFor(const CandidateInputs& inputs,
                                               std::string_view family, int pp_size) {
  const bool looks = std::ranges::any_of(schedule::Families(), [&](const auto& known) {
    return known.name == family && known.uses_costs;
  });
  if (!looks) return cost::Costs();
  ASSIGN_OR_RETURN(const mesh::Partition partition,
                   PartitionOf(inputs, pp_size, schedule::Placement::kLoop, pp_size,
                               LayerSeconds(inputs, pp_size)));
  return WithMeetings(inputs, partition,
                      CostsOf(inputs, partition, EndsOf(inputs, partition, pp_size)));
}

// Takes the barrier out of a complete candidate.
absl::Status OverlapSteps(const CandidateInputs& inputs, const sim::ExpectedSums& sums,
                          Candidate& candidate) {
  const auto refused = [](std::string rule, std::string fix) {
    return InvalidField({.field = "optimizer.barrier",
                         .value = "false",
                         .rule = std::move(rule),
                         .fix = std::move(fix)});
  };
  Plan& plan = candidate.plan;
  if (program::ShardsOptimizer(plan.programs[0]) &&
      inputs.options.oldest_protocol < kForeseenShardsProtocolVersion) {
    return refused("needs newer workers where replicas share the optimizer's state",
                   "upgrade takt-worker, or use auto or true");
  }
  if (program::SpreadsVocabulary(plan.programs[0]) &&
      inputs.options.oldest_protocol < kForeseenRowsProtocolVersion) {
    return refused("needs newer workers where the vocabulary is spread",
                   "upgrade takt-worker, or use auto or true, or vocabulary: last");
  }
  absl::StatusOr<std::vector<program::Program>> programs = program::RemoveBarrier(plan.programs);
  if (!programs.ok()) {
    const bool is_open = inputs.job.parallelism.schedule == "auto";
    return refused(absl::StrCat("cannot be ", is_open ? "here" : "under " + plan.schedule.name,
                                ": a ", std::string(programs.status().message())),
                   "use auto or true, or change what the reason names");
  }
  layout::SizeHeadStash(inputs.model, plan.partition, *programs);
  RETURN_IF_ERROR(sim::Prove(*programs, {.sums = sums}));
  ASSIGN_OR_RETURN(candidate.report, SimulateSteps(plan.schedule, *programs, plan.costs));
  plan.programs = *std::move(programs);
  plan.predicted_step_seconds = candidate.report.step_time;
  plan.predicted_bubble_fraction = candidate.report.step_bubble_fraction;
  plan.memory = MemoryOf(inputs, plan);
  return absl::OkStatus();
}

absl::Status BadFile(const config::JobSpec& job, std::string rule, std::string fix) {
  return InvalidField({.field = "parallelism.schedule",
                       .value = job.parallelism.schedule,
                       .rule = std::move(rule),
                       .fix = std::move(fix)});
}

// Compares the file's own counts with what the job asks for.
absl::Status CheckFileSizes(const CandidateInputs& inputs, const schedule::Schedule& schedule) {
  const config::Parallelism& asked = inputs.job.parallelism;
  const int ranks = schedule.num_ranks(), microbatches = Microbatches(inputs);
  if (asked.pipeline.value_or(ranks) != ranks) {
    return BadFile(
        inputs.job,
        absl::StrCat("has ", Counted(ranks, "rank"), "; parallelism.pipeline is ", *asked.pipeline),
        "make them equal, or leave pipeline out");
  }
  if (asked.chunks.has_value() && *asked.chunks * ranks != schedule.num_stages) {
    return BadFile(inputs.job,
                   absl::StrCat("has ", Counted(schedule.num_stages, "stage"), " on ",
                                Counted(ranks, "rank"), "; parallelism.chunks is ", *asked.chunks),
                   "make them agree, or leave chunks out");
  }
  if (schedule.num_microbatches != microbatches) {
    return BadFile(inputs.job,
                   absl::StrCat("has ", Counted(schedule.num_microbatches, "microbatch"),
                                "; batch.global / (batch.microbatch x "
                                "parallelism.data) makes ",
                                microbatches),
                   "make them equal");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Candidate> FromPartition(const CandidateInputs& inputs, schedule::Schedule schedule,
                                        mesh::Partition partition,
                                        mesh::VocabularyEnds vocabulary_ends) {
  TAKT_CHECK(schedule.spreads_vocabulary == !vocabulary_ends.empty());
  Plan plan{.partition = std::move(partition),
            .vocabulary_ends = std::move(vocabulary_ends),
            .schedule = std::move(schedule)};
  plan.mesh = inputs.MeshOf(plan.schedule.num_ranks());
  plan.microbatch = inputs.model.microbatch;
  const program::LowerOptions options =
      MakeLowerOptions(inputs, plan.schedule, plan.partition, plan.vocabulary_ends);
  ASSIGN_OR_RETURN(plan.programs, program::Lower(plan.schedule, options));
  layout::SizeHeadStash(inputs.model, plan.partition, plan.programs);
  const sim::ExpectedSums sums = {.gradients = options.reduce_gradients,
                                  .tied_embeddings = options.tied_embeddings};
  RETURN_IF_ERROR(sim::Prove(plan.programs, {.sums = sums, .schedule = &plan.schedule}));
  plan.costs = CostsOf(inputs, plan.partition, plan.vocabulary_ends);
  plan.bucket_bytes = BucketBytes(inputs, plan.mesh.pp_size);
  ASSIGN_OR_RETURN(sim::Report report, SimulateSteps(plan.schedule, plan.programs, plan.costs));
  plan.predicted_step_seconds = report.step_time;
  plan.predicted_bubble_fraction = report.step_bubble_fraction;
  if (inputs.job.validation.has_value()) {
    ASSIGN_OR_RETURN(plan.validation_programs, ForwardPrograms(inputs, plan));
  }
  plan.memory = MemoryOf(inputs, plan);
  const double makespan = report.makespan;
  Candidate candidate{.plan = std::move(plan), .report = std::move(report), .makespan = makespan};
  if (!inputs.without_barrier) return candidate;
  RETURN_IF_ERROR(OverlapSteps(inputs, sums, candidate));
  return candidate;
}

absl::StatusOr<sim::Report> SimulateSteps(const schedule::Schedule& schedule,
                                          const std::vector<program::Program>& programs,
                                          const cost::Costs& costs) {
  const bool overlaps = program::OverlapsSteps(programs.front());
  const int steps = overlaps ? kOverlappedSteps : IsAsynchronous(schedule) ? kStepsInARow : 1;
  return sim::SimulateExecuted(programs, costs, {.steps = steps});
}

absl::StatusOr<sim::Report> SimulateOver(const CandidateInputs& inputs,
                                         const schedule::Schedule& schedule,
                                         const mesh::Partition& partition,
                                         const mesh::VocabularyEnds& vocabulary_ends) {
  ASSIGN_OR_RETURN(
      std::vector<program::Program> programs,
      program::Lower(schedule, MakeLowerOptions(inputs, schedule, partition, vocabulary_ends)));
  if (inputs.overlaps) {
    ASSIGN_OR_RETURN(programs, program::RemoveBarrier(programs));
  }
  return SimulateSteps(schedule, programs, CostsOf(inputs, partition, vocabulary_ends));
}

double EstimateSeconds(const CandidateInputs& inputs, int pp_size) {
  const absl::StatusOr<mesh::Partition> partition =
      MakePartition(inputs.model, pp_size, {}, schedule::Placement::kLoop, pp_size,
                    LayerSeconds(inputs, pp_size));
  TAKT_CHECK(partition.ok());
  const cost::Costs costs = WithMeetings(inputs, *partition, CostsOf(inputs, *partition));
  double largest = 0, all = 0, at_the_end = 0;
  for (StageId stage(0); stage.value() < pp_size; ++stage) {
    largest = std::max(largest, costs.F(stage) + costs.B(stage));
    all += costs.F(stage) + costs.B(stage);
    const double sums =
        inputs.shares ? costs.ReduceScatter(stage) + costs.Gather(stage) : costs.Reduction(stage);
    at_the_end = std::max(at_the_end, sums + costs.Optimizer(PpRank(stage.value())));
  }
  // Blocks of words are small enough to make all ranks equal.
  if (ModesOf(inputs, pp_size).spread) largest = all / pp_size;
  return (Microbatches(inputs) + pp_size - 1) * largest + at_the_end;
}

absl::StatusOr<double> PredictStep(const config::JobSpec& job, const PlanOptions& options,
                                   const Plan& plan) {
  const CandidateInputs inputs{.job = job,
                               .model = plan.model,
                               .options = options,
                               .dp_size = plan.mesh.dp_size,
                               .shares = job.parallelism.SharesOptimizer() || SharesOptimizer(plan),
                               .frees = FreesWeights(plan),
                               .overlaps = OverlapsSteps(plan)};
  ASSIGN_OR_RETURN(const sim::Report report,
                   SimulateOver(inputs, plan.schedule, plan.partition, plan.vocabulary_ends));
  return report.step_time;
}

absl::StatusOr<Candidate> FromFamily(const CandidateInputs& inputs, std::string_view family,
                                     int pp_size) {
  const config::Parallelism& asked = inputs.job.parallelism;
  ASSIGN_OR_RETURN(cost::Costs costs, CostsToGenerateFor(inputs, family, pp_size));
  absl::StatusOr<schedule::Schedule> schedule =
      schedule::Generate(family, {.num_ranks = pp_size,
                                  .num_microbatches = Microbatches(inputs),
                                  .num_chunks = asked.chunks,
                                  .group = asked.group,
                                  .costs = std::move(costs)});
  if (!schedule.ok()) return InJobTerms(schedule.status(), inputs.job);
  return FromSchedule(inputs, *std::move(schedule));
}

std::vector<Candidate> FromSearch(const CandidateInputs& inputs, schedule::Placement placement,
                                  int pp_size, int num_chunks) {
  const int num_stages = pp_size * num_chunks;
  const auto partition =
      PartitionOf(inputs, num_stages, placement, pp_size, LayerSeconds(inputs, pp_size));
  if (!partition.ok()) return {};
  search::Request request{
      .num_ranks = pp_size,
      .num_microbatches = Microbatches(inputs),
      .num_chunks = {num_chunks},
      .placements = {placement},
      .costs = WithMeetings(inputs, *partition,
                            CostsOf(inputs, *partition, EndsOf(inputs, *partition, pp_size))),
      .shares = inputs.shares,
      .max_candidates = std::clamp<std::int64_t>(
          kSearchedActions / (std::int64_t{3} * num_stages * Microbatches(inputs)), 100, 5000)};
  for (const program::StageShape& stage : MakeLowerOptions(inputs, *partition, {}).stages)
    request.message_bytes.push_back(stage.output_bytes);
  std::vector<Candidate> candidates;
  for (const int times : {1, 2}) {
    request.max_in_flight = {times * num_stages};
    absl::StatusOr<search::Found> found = search::Search(request);
    if (!found.ok()) continue;
    found->schedule.name = absl::StrCat("auto (", found->origin, ")");
    absl::StatusOr<Candidate> candidate = FromSchedule(inputs, std::move(found->schedule));
    if (candidate.ok()) candidates.push_back(*std::move(candidate));
  }
  return candidates;
}

absl::StatusOr<Candidate> FromFile(const CandidateInputs& inputs) {
  const config::Parallelism& asked = inputs.job.parallelism;
  const std::string path = asked.schedule.substr(std::string_view("file:").size());
  ASSIGN_OR_RETURN(schedule::Schedule schedule, schedule::ParseCsv(asked.schedule_csv, path));
  ASSIGN_OR_RETURN(schedule.placement, schedule::InferPlacement(schedule));
  schedule.name = asked.schedule;
  if (const absl::Status valid = schedule::Validate(schedule); !valid.ok()) {
    std::string_view reason(valid.message().data(), valid.message().size());
    const std::string named = absl::StrCat(schedule.name, ": ");  // the field's value says it too
    if (reason.starts_with(named)) reason.remove_prefix(named.size());
    return BadFile(inputs.job, std::string(reason), "correct the file");
  }
  RETURN_IF_ERROR(CheckFileSizes(inputs, schedule));
  if (schedule.spreads_vocabulary && !(inputs.spread && schedule.num_ranks() > 1)) {
    return BadFile(inputs.job, "has S and T, which compute with words that are spread over ranks",
                   "remove them, or set parallelism.vocabulary: spread on two ranks or more");
  }
  return FromSchedule(inputs, std::move(schedule));
}

}  // namespace takt::plan
