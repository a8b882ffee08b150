// SPDX-License-Identifier: Apache-2.0
// Turns one schedule for one pipeline size into a candidate: partition, programs, proof, simulated
// step.
#pragma once

#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/plan.h"
#include "common/sim/simulate.h"

namespace takt::plan {

struct Candidate {
  Plan plan;  // without its model and warnings; its validation programs are not proved
  sim::Report report;
  double makespan = 0;  // of one step with its barrier, by which cuts are compared
};

// All candidates of one division of a job's batch have these in common. The struct borrows.
struct CandidateInputs {
  const config::JobSpec& job;  // its own data and microbatch do not count
  const model::Model& model;   // for the microbatch of the division
  const PlanOptions& options;
  int dp_size = 1;
  std::vector<model::Recompute> recompute = {model::Recompute::kNone};  // one, or one a stage
  // The words of the head and of the embedding are spread, unless there is one rank alone. Then
  // partitions are made for layers without words.
  bool spread = false;
  // The ranks that sum gradients share the optimizer's state, if there are any and the schedule
  // flushes.
  bool shares = false;
  // With `shares`: they share the weights too, and free those of stages that do not compute.
  bool frees = false;
  // The step that SimulateOver returns is without a barrier.
  bool overlaps = false;
  // FromPartition makes a candidate without a barrier.
  bool without_barrier = false;

  mesh::Mesh MeshOf(int pp_size) const {
    return {.pp_size = pp_size,
            .dp_size = dp_size,
            .cp_size = model.context_ranks,
            .tp_size = model.tensor.size};
  }
  // Returns how many terms each replica brings to these sums.
  int leaves() const { return job.parallelism.LeavesPerReplica(dp_size); }
  // Returns how many ranks sum the gradients of the same parameters.
  int num_replicas() const { return MeshOf(1).num_replicas(); }
};

// Returns about what a step takes on `pp_size` ranks with a stage each: by the formula of 1F1B, and
// with the sums of gradients and the update after it.
// Precondition: pp_size is at most the model's layers.
double EstimateSeconds(const CandidateInputs& inputs, int pp_size);

// Makes the candidate of a built-in family on `pp_size` ranks. Errors: kInvalidArgument
// (FieldError) with fields of the job spec.
absl::StatusOr<Candidate> FromFamily(const CandidateInputs& inputs, std::string_view family,
                                     int pp_size);

// Searches schedules for the job's costs on `pp_size` ranks with `num_chunks` each, with the memory
// that 1F1B takes and with twice that. Returns none if the job's layers do not allow that
// placement. The placement is never bidirectional.
std::vector<Candidate> FromSearch(const CandidateInputs& inputs, schedule::Placement placement,
                                  int pp_size, int num_chunks);

// Makes the candidate of a schedule over a partition that fits its stages and ranks.
// vocabulary_ends: set exactly if the schedule spreads the words.
absl::StatusOr<Candidate> FromPartition(const CandidateInputs& inputs, schedule::Schedule schedule,
                                        mesh::Partition partition,
                                        mesh::VocabularyEnds vocabulary_ends = {});

// Simulates a step, or without a flush or a barrier one in a row of steps.
absl::StatusOr<sim::Report> SimulateSteps(const schedule::Schedule& schedule,
                                          const std::vector<program::Program>& programs,
                                          const cost::Costs& costs);

// Simulates that candidate's step, without a proof.
absl::StatusOr<sim::Report> SimulateOver(const CandidateInputs& inputs,
                                         const schedule::Schedule& schedule,
                                         const mesh::Partition& partition,
                                         const mesh::VocabularyEnds& vocabulary_ends = {});

// Returns what the candidate's step is made of.
absl::StatusOr<Parts> PartsOf(const CandidateInputs& inputs, const Candidate& candidate);

// Returns what a step of the plan would take if each tensor group were on one host.
absl::StatusOr<double> StepOnOneHost(const CandidateInputs& inputs, const Plan& plan);

// Makes the candidate of the CSV that came with the job. Errors: as above.
absl::StatusOr<Candidate> FromFile(const CandidateInputs& inputs);

}  // namespace takt::plan
