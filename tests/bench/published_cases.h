// SPDX-License-Identifier: Apache-2.0
// Reads training runs that others published (tests/golden/published): how they were configured, and
// how long a step took.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/model/model.h"

namespace takt::bench {

// Describes a run by its configuration.
struct PublishedRun {
  std::string group;    // runs that are compared with one another
  std::string cluster;  // the stem of a file in deploy/examples/clusters
  std::string model_name;
  model::ModelConfig model;
  // Plans for GPUs do not have these axes: GPUs that share layers count as one device.
  int tensor = 1, context_parallel = 1;
  int data = 1, pipeline = 1, chunks = 1;
  int microbatch = 1, global_batch = 1;
  model::Recompute recompute = model::Recompute::kNone;
  std::vector<int> stage_layers;  // blocks of each stage
  bool measured_layers = false;   // its layers' times are PublishedCases::layers
  double seconds = 0;             // of a step

  int gpus_per_device() const { return tensor * context_parallel; }
  int devices() const { return data * pipeline; }
  int gpus() const { return gpus_per_device() * devices(); }
  // Returns for example "tp4 dp8 pp16 mb2"; chunks follow the pipeline: "pp8x12".
  std::string Name() const;
};

// Returns whether the runs train the same model on the same batch with as many GPUs, so that one of
// them is the better way to do it.
bool DoTheSameWork(const PublishedRun& a, const PublishedRun& b);

enum class MeasuredLayerKind : std::uint8_t { kEmbedding, kBlock, kHead };

// Says what a layer took on one GPU.
struct MeasuredLayer {
  std::string cluster;  // as of a run
  model::ModelConfig model;
  int microbatch = 1;
  MeasuredLayerKind kind = MeasuredLayerKind::kBlock;
  double forward_seconds = 0, input_grad_seconds = 0, weight_grad_seconds = 0;
};

// Says how a model with measured stages ran.
struct MeasuredRun {
  std::string schedule;
  bool barrier = true;  // before the optimizer
  double seconds = 0;   // of a step
};

// Describes a model whose stages are alike, and runs of it under several schedules.
struct MeasuredStages {
  std::string group;
  int ranks = 1, blocks = 1;  // blocks: of a stage; interleaved runs have one a chunk
  int microbatches = 1, microbatch = 1;
  double forward_seconds = 0, input_grad_seconds = 0, weight_grad_seconds = 0;  // of a stage
  double message_seconds = 0;
  std::vector<MeasuredRun> runs;
};

// Describes a run of 1f1b whose ranks differ.
struct MeasuredRanks {
  std::string name;
  int microbatches = 1;
  std::vector<double> forward_seconds, backward_seconds;  // by rank
  double seconds = 0;                                     // of a step
};

// Says why a published configuration is not predicted.
struct LeftOutCase {
  std::string what, why;
};

struct PublishedCases {
  std::vector<PublishedRun> runs;
  std::vector<MeasuredLayer> layers;
  std::vector<MeasuredStages> stages;
  std::vector<MeasuredRanks> ranks;
  std::vector<LeftOutCase> left_out;
};

// Reads the tables of the folder. Errors: kNotFound (a table cannot be read), kInvalidArgument
// (FieldError with the table's line).
absl::StatusOr<PublishedCases> ReadPublishedCases(const std::string& folder);

// Returns the text of a file. Errors: kNotFound.
absl::StatusOr<std::string> ReadTextFile(const std::string& path);

}  // namespace takt::bench
