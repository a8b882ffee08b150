// SPDX-License-Identifier: Apache-2.0
// Plans published runs. The times of their layers become a profile, so that the planner itself
// predicts the steps.
//
// Workers split layers and share sequences on CPUs alone, so plans for GPUs have neither axis. GPUs
// that share layers count as one device: with their FLOPs and links together, and with the memory
// of the tensor group, because ranks of a context group all have the weights. On G = tensor x
// context GPUs
//
//   F of a block takes   FLOPs / (G * peak * peak_share) + values * seconds_per_value / G + sums
//   I takes              the same with its FLOPs, and under full recompute F again
//   W takes              FLOPs / (G * peak * peak_share)
//
// where the values are those of the activation that a block passes on, and the sums are two
// all-reduces of these values in bf16 over the tensor group, which nothing hides. The head has the
// term of FLOPs alone, and the embedding takes no time. Runs send activations in bf16. Sums of
// gradients are all-reduces in f32; between hosts they leave through all adapters of a host. Not
// counted are the exchange of keys within a context group, the optimizer, and the loading of data.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/cluster/cluster.h"
#include "common/config/job_spec.h"
#include "common/plan/plan.h"
#include "tests/bench/published_cases.h"
#include "tests/bench/published_fit.h"

namespace takt::bench {

// Holds what a cluster file says of a GPU, its host and the links.
struct Hardware {
  std::string device;  // one of cluster::KnownDevices
  int gpus_per_host = 1;
  std::int64_t memory_bytes = 0;  // of a GPU
  double peak = 1;                // published FLOPs per second in bf16, of a GPU
  cluster::Link same_host, between_hosts;
};

// Errors: kNotFound (there is no such file), kInvalidArgument (it is no cluster file, or leaves out
// what is needed here).
absl::StatusOr<Hardware> ReadHardware(const std::string& path);

// Says what the layers of a run take on some hardware.
struct MachineModel {
  Hardware hardware;
  FittedConstants constants;
  std::vector<MeasuredLayer> layers;  // if there are any, their times count and not the constants
};

// Counts the GPUs that are one device of a plan.
struct DeviceGroup {
  int tensor = 1, context_parallel = 1;

  int gpus() const { return tensor * context_parallel; }
};

// Returns what a plan of the job may assume that runs on so many devices. Errors: the job's model
// is wrong.
absl::StatusOr<plan::PlanOptions> OptionsOn(const MachineModel& machine, const config::JobSpec& job,
                                            const DeviceGroup& group, int num_devices);

// Returns the job of a run with its model, batch and precision. Its parallelism is open.
config::JobSpec OpenJobOf(const PublishedRun& run);

struct RunPrediction {
  double seconds = 0;
  // Of the device that needs most, with an optimizer that is not shared.
  std::int64_t memory_bytes = 0;
  std::int64_t limit_bytes = 0;  // what a device has

  bool fits() const { return memory_bytes <= limit_bytes; }
};

// Predicts the run as it was configured. Errors: it cannot be planned.
absl::StatusOr<RunPrediction> PredictRun(const PublishedRun& run, const MachineModel& machine);

// Plans a step of the stages as our workers would run it: with a barrier. schedule: a family, or
// "auto".
absl::StatusOr<plan::Plan> PlanStages(const MeasuredStages& stages, const std::string& schedule);

// Predicts the run as it ran.
absl::StatusOr<double> PredictStages(const MeasuredStages& stages, const MeasuredRun& run);

// Simulates 1f1b with these times; messages take none.
absl::StatusOr<double> PredictRanks(const MeasuredRanks& ranks);

}  // namespace takt::bench
