// SPDX-License-Identifier: Apache-2.0
// One schedule for one pipeline size, taken all the way: partition, programs, proof, simulated
// step.
#pragma once

#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/cost/costs.h"
#include "common/plan/plan.h"
#include "common/sim/simulate.h"

namespace takt::plan {

struct Candidate {
  schedule::Schedule schedule;
  mesh::Partition partition;
  std::vector<program::Program> programs;
  cost::Costs costs;
  sim::Report report;
  // Of its forwards alone: nothing runs ahead of its step. Not proved; empty: the job does not
  // validate.
  std::vector<program::Program> validation_programs;
  std::vector<MemoryBytes> memory;  // by pp rank
};

// What every candidate of a job has in common. Borrows.
struct CandidateInputs {
  const config::JobSpec& job;
  const model::Model& model;
  const PlanOptions& options;
  int dp_size = 1;
  std::vector<model::Recompute> recompute = {model::Recompute::kNone};  // one, or one a stage
};

// A built-in family on `pp_size` ranks. Errors: kInvalidArgument (FieldError) with fields of the
// job spec.
absl::StatusOr<Candidate> FromFamily(const CandidateInputs& inputs, std::string_view family,
                                     int pp_size);

// Searched for the job's costs on `pp_size` ranks with `num_chunks` each, with the memory that 1F1B
// takes and with twice that. None: the job's layers do not allow that placement. Never
// bidirectional.
std::vector<Candidate> FromSearch(const CandidateInputs& inputs, schedule::Placement placement,
                                  int pp_size, int num_chunks);

// The CSV that came with the job. Errors: as above.
absl::StatusOr<Candidate> FromFile(const CandidateInputs& inputs);

}  // namespace takt::plan
