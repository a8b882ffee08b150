// SPDX-License-Identifier: Apache-2.0
// From a validated job to what every rank executes. A pure function with a printable result.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/memory_kind.h"
#include "common/config/job_spec.h"
#include "common/cost/costs.h"
#include "common/mesh/mesh.h"
#include "common/model/model.h"
#include "common/program/program.h"
#include "common/schedule/schedule.h"

namespace takt::plan {

struct PlanOptions {
  // Workers that the plan may use at most; `pipeline: auto` takes as many as help.
  int max_workers = 1;
  // What they compute on, which decides what a bf16 job keeps in bf16.
  config::DeviceKind device = config::DeviceKind::kCpu;
  // Rate that turns FLOPs into seconds until profiles exist, and what a message costs until links
  // are measured.
  double matmul_flops_per_second = 1e11;
  double link_latency_seconds = 20e-6;
  double link_seconds_per_byte = 0.5e-9;
  // What a worker has for a rank, where it has least; 0: not known, and no plan is too large.
  std::int64_t worker_memory_bytes = 0;
};

struct Plan {
  model::Model model;
  mesh::Mesh mesh;
  mesh::Partition partition;
  schedule::Schedule schedule;
  std::vector<program::Program> programs;  // by pp rank; proved to complete
  // Forward only, over the job's validation set; empty: it has none.
  std::vector<program::Program> validation_programs;
  std::vector<MemoryBytes> memory;  // by pp rank: what its worker will need
  cost::Costs costs;                // seconds, that the prediction is of
  double predicted_step_seconds = 0;
  double predicted_bubble_fraction = 0;
  std::vector<std::string> warnings;
};

// Mesh, partition, schedule, lowering, proof, in this order.
// data: auto      1.
// recompute: auto none; if that does not fit the workers' memory selective; if not that, full.
// pipeline: auto  the largest that the layers, max_workers and the schedule allow. A given one may
//                 exceed max_workers: such a job waits.
// schedule: auto  of all families that flush and have one copy of the weights, and what a search
//                 finds for the job's costs, the one whose simulated step is shortest; of those
//                 within 1 % of it, the one that holds the least. A searched one is named after
//                 what it grew from: "auto (zb-1p)".
// Errors: kInvalidArgument (FieldError) when the job cannot be planned: pipeline larger than
// layers, global batch not divisible, too few microbatches, a schedule file that is wrong, more
// memory needed than the workers have.
absl::StatusOr<Plan> MakePlan(const config::JobSpec& job, const PlanOptions& options);

// The plan for people: mesh, schedule, stages with their layers, prediction.
std::string ToString(const Plan& plan);

// Layers to stages. `stage_layers` empty: contiguous parts whose largest FLOP sum is least, with
// embedding and head counted.
absl::StatusOr<mesh::Partition> MakePartition(const model::Model& model, int num_stages,
                                              const std::vector<int>& stage_layers,
                                              schedule::Placement placement, int pp_size);

}  // namespace takt::plan
