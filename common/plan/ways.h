// SPDX-License-Identifier: Apache-2.0
// Lists the ways to divide a job over workers: its batch over replicas and into microbatches, its
// layers over the ranks of a pipeline. ranking.h compares schedules for them.
#pragma once

#include <map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/plan/candidate.h"
#include "common/plan/plan.h"

namespace takt::plan {

// Checks that the batch can be divided as the job says, whatever workers there are, and that its
// parts have fixed sizes where each is an update of its own (pipedream).
// Errors: kInvalidArgument (FieldError on batch or elastic).
absl::Status CheckBatch(const config::JobSpec& job);

// Says how the batch of a step is divided, and each layer.
struct Division {
  int data = 1;        // replicas
  int microbatch = 1;  // sequences of a microbatch
  int tensor = 1;      // ranks that share each layer
};

struct Way {
  Division division;
  int pp_size = 1;
  double least_seconds = 0;  // no schedule takes less for a step
};

// Makes the inputs of candidates for each division of a job's batch. It borrows the job and the
// options, and builds each model that it needs once. One caller at a time.
class JobInputs final {
 public:
  // Errors: kInvalidArgument (FieldError): the model is wrong, the batch cannot be divided, or it
  // can only be divided into too many microbatches.
  static absl::StatusOr<JobInputs> Create(const config::JobSpec& job, const PlanOptions& options);

  // What is returned borrows from this object.
  CandidateInputs Of(const Division& division);
  // The same, for the division that the candidate has.
  CandidateInputs Of(const Candidate& candidate);

  const config::JobSpec& job() const { return *job_; }
  const PlanOptions& options() const { return *options_; }
  // These are the divisions that the job leaves open, or the one that it names: at least one.
  const std::vector<Division>& divisions() const { return divisions_; }
  // Says why the layers cannot be shared, for each number of ranks that was left out for that.
  const std::vector<Refusal>& refused() const { return refused_; }

 private:
  absl::StatusOr<model::Model> MakeModel(const Division& division) const;
  void Refuse(const Division& division, const absl::Status& error);

  JobInputs(const config::JobSpec& job, const PlanOptions& options)
      : job_(&job), options_(&options) {}

  const config::JobSpec* job_;
  const PlanOptions* options_;
  std::vector<Division> divisions_;
  std::vector<Refusal> refused_;
  std::map<std::pair<int, int>, model::Model> models_;  // by microbatch and tensor
};

// Returns the ways among which the job leaves the choice, those first that seem the fastest. If
// there are very many, it leaves out those whose steps seem long by 1F1B's formula for stages that
// are as equal as the layers allow. There is at least one.
std::vector<Way> WaysOf(JobInputs& inputs);

}  // namespace takt::plan
