// SPDX-License-Identifier: Apache-2.0
// Turns a validated job into what every rank executes. MakePlan is a pure function with a printable
// result.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/memory_kind.h"
#include "common/base/version.h"
#include "common/config/job_spec.h"
#include "common/cost/costs.h"
#include "common/mesh/mesh.h"
#include "common/mesh/vocabulary_split.h"
#include "common/model/model.h"
#include "common/model/shared_mixture.h"
#include "common/profile/profile.h"
#include "common/program/program.h"
#include "common/schedule/schedule.h"

namespace takt::plan {

// The kind of host that the ranks of a job share.
struct Host {
  std::string machine;  // profile::Conditions::machine; empty: not known
  int threads = 1;      // of a rank, where the job names no number
  int workers = 1;      // attached there
  int free = 0;         // of these, so many may run the job; 0: all

  // Returns how many ranks of a job may share it.
  int room() const { return free > 0 ? free : std::max(workers, 1); }

  // Returns how a job of `num_ranks` runs there. job_threads: of each rank, if the job names them.
  profile::Conditions ConditionsOf(int num_ranks, std::optional<int> job_threads,
                                   config::DeviceKind device) const;
};

struct PlanOptions {
  // The plan may use at most so many workers. `pipeline: auto` takes as many as help.
  int max_workers = 1;
  // The workers compute on this. It decides what a bf16 job keeps in bf16.
  config::DeviceKind device = config::DeviceKind::kCpu;
  // What was measured on workers; null: nothing. Copies share it.
  std::shared_ptr<const profile::Profile> profile;
  Host host;
  // The rate turns FLOPs into seconds where nothing was measured, and into MFU. The others say what
  // a message costs where none was measured.
  double matmul_flops_per_second = 1e11;
  double link_latency_seconds = 20e-6;
  double link_seconds_per_byte = 0.5e-9;
  bool use_measured_links = true;  // false: all messages cost this
  // The oldest protocol among the workers' programs.
  int oldest_protocol = kProtocolVersion;
  // The least memory that a worker has for a rank, on its GPU if it computes on one. 0: it is not
  // known, and no plan is too large.
  std::int64_t worker_memory_bytes = 0;
  // Of the job's last steps, the share whose gradients were clipped; nullopt: too few are known.
  std::optional<double> clipped_share;
  // The most rows of any of the ranks that share experts, divided by the mean of these ranks.
  double expert_imbalance = model::kExpertImbalance;
};

// How much memory libraries take for themselves on a GPU. It is a guess, until docs/gpu-checks.md
// measures it.
inline constexpr std::int64_t kLibraryBytes = std::int64_t{448} << 20;

// Returns the bytes that count against PlanOptions::worker_memory_bytes.
inline std::int64_t CountedBytes(const MemoryBytes& bytes, config::DeviceKind device) {
  return device == config::DeviceKind::kCuda ? bytes.on_device() + kLibraryBytes : bytes.total();
}

struct Plan {
  model::Model model;
  mesh::Mesh mesh;
  int microbatch = 1;  // sequences: what the job names, or what was chosen
  mesh::Partition partition;
  mesh::VocabularyEnds vocabulary_ends;  // empty: the head and the embedding are not spread
  schedule::Schedule schedule;
  std::vector<program::Program> programs;  // by pp rank; proved to complete
  // These have the forwards alone, over the job's validation set. They are empty if it has none.
  std::vector<program::Program> validation_programs;
  std::vector<MemoryBytes> memory;  // by pp rank: what its worker will need
  cost::Costs costs;                // in seconds; the prediction is made of them
  std::int64_t bucket_bytes = 0;    // of BucketBytes
  double predicted_step_seconds = 0;
  double predicted_bubble_fraction = 0;
  std::vector<std::string> warnings;
};

// Returns the blocks of each stage, or its emulated layers.
std::vector<int> StageLayers(const model::Model& model, const mesh::Partition& partition);

// Returns whether the ranks that sum gradients share the optimizer's state.
inline bool SharesOptimizer(const Plan& plan) {
  return !plan.programs.empty() && program::ShardsOptimizer(plan.programs.front());
}

// Returns whether steps overlap, without a barrier before the update.
inline bool OverlapsSteps(const Plan& plan) {
  return !plan.programs.empty() && program::OverlapsSteps(plan.programs.front());
}

// Returns whether ranks free weights in a step that their replicas share.
inline bool FreesWeights(const Plan& plan) {
  return !plan.programs.empty() && program::FreesWeights(plan.programs.front());
}

// Chooses mesh, partition and schedule, lowers the schedule and proves the programs, in this order.
// The plan decides what the job leaves open:
// data: auto      the number of replicas whose step is shortest, of the divisors of the batch that
//                 max_workers allow. It changes the bits of losses. So a plan chooses only where
//                 the job says `auto` in words (data_auto), and the caller fixes the choice for all
//                 later plans of the job (JobSpec::FixBits).
// tensor: auto    likewise (tensor_auto), of the powers of two that divide the layers and find room
//                 on a host.
// microbatch: auto  likewise (microbatch_auto), of the smallest 24 divisors of the batch.
// recompute: auto as little on each rank as fits the workers' memory: none, selective or full
//                 (least_recompute.h).
// pipeline: auto  the size whose step is shortest, of those that the layers, max_workers and the
//                 schedule allow. A given one may exceed max_workers: such a job waits.
// elastic         sizes that have a range and no number are chosen likewise, within the range. The
//                 smallest may exceed max_workers.
// schedule: auto  the schedule whose simulated step is shortest, of all families that flush and
//                 have one copy of the weights, and of what a search finds for the job's costs.
//                 A searched one is named after what it grew from: "auto (zb-1p)".
// vocabulary: auto  `spread` where the step is more than 1 % shorter so, else `last`.
// shard           where the job leaves it out: `optimizer` if replicas do not fit the workers
//                 without it; else `none`.
// Of all ways within 1 % of the shortest step, it takes the one with the fewest ranks, then the
// fewest replicas, then one that does not spread the vocabulary, then the fewest stages, then the
// one that holds the least.
// Errors: kInvalidArgument (FieldError) when the job cannot be planned: pipeline larger than
// layers, global batch not divisible, too few microbatches, a schedule file that is wrong, more
// memory needed than the workers have.
absl::StatusOr<Plan> MakePlan(const config::JobSpec& job, const PlanOptions& options);

// Predicts the seconds of a step of `plan` from what is known in `options`, which may be more than
// when the plan was made. job: the one that the plan is for. It reads only model, mesh, partition,
// vocabulary_ends and schedule of the plan, and makes the programs again.
absl::StatusOr<double> PredictStep(const config::JobSpec& job, const PlanOptions& options,
                                   const Plan& plan);

// A way to run a job that was considered and left out.
struct Refusal {
  mesh::Mesh mesh;
  int microbatch = 1;
  std::string schedule;
  std::vector<model::Recompute> recompute;  // one for all stages, or one a stage
  bool spread = false;                      // the vocabulary
  bool shares = false;                      // the optimizer's state
  std::vector<int> stage_layers;            // as of StageLayers; empty: no stages were made
  std::string reason;
};

// What a predicted step is made of: seconds of the mean rank, whose sum is the step.
struct Parts {
  double compute = 0;
  double imbalance = 0;      // stages of the schedule's order that take different times
  double communication = 0;  // messages that no schedule hides
  double sync = 0;           // sums of gradients that this schedule does not hide
  double schedule = 0;  // filling and emptying the pipeline, and what a better order would save

  // The least time of any schedule of these stages and messages that holds no more in flight.
  double lower_bound = 0;  // 0: unknown, as the schedule does not flush or steps overlap
};

struct Forecast {
  Plan plan;  // not proved beyond what ranking needs; its warnings are empty
  Parts parts;
  // Training pauses for so long at a checkpoint; 0: the job saves none.
  double checkpoint_pause_seconds = 0;
};

// Says where the times of a plan come from: texts for people.
struct Origins {
  std::vector<std::string> measured, interpolated, guessed;
};

struct Forecasts {
  // The first is what MakePlan takes; the others follow by their steps. Empty: none fits.
  std::vector<Forecast> candidates;
  std::vector<Refusal> refused;
  Origins origins;  // of all candidates' times
  // If none fits: how much memory the one lacks that needs least, or how many workers there would
  // have to be (FieldError).
  absl::Status fits;
};

// Ranks the ways to run the job, at most `top` of them, as MakePlan chooses among them, but refuses
// those with more ranks than max_workers. Errors: as MakePlan, but for the memory of workers.
absl::StatusOr<Forecasts> MakeForecasts(const config::JobSpec& job, const PlanOptions& options,
                                        int top);

// Describes the plan for people: mesh, schedule, stages with their layers, prediction.
std::string ToString(const Plan& plan);

// Assigns layers to stages, one or more to each. If `stage_layers` is empty, the stages are
// contiguous parts whose longest is shortest, with embedding and head counted. Else it has the
// blocks of each stage: 0 makes a stage of the embedding or of the head alone.
// layer_seconds: what each layer takes; empty: its FLOPs count instead.
absl::StatusOr<mesh::Partition> MakePartition(const model::Model& model, int num_stages,
                                              const std::vector<int>& stage_layers,
                                              schedule::Placement placement, int pp_size,
                                              const std::vector<double>& layer_seconds = {});

}  // namespace takt::plan
