// SPDX-License-Identifier: Apache-2.0
// The names inside a directory of checkpoints (docs/checkpoints.md):
//   step-00000100/                       complete
//     model-00001-of-00014.safetensors      weights, a file a layer of the model's list
//     optimizer-00001-of-00014.safetensors  moments, likewise
//     model.safetensors.index.json, config.json, manifest.json
//     kernel_plan.json                      of a job on GPUs
//   step-00000100.partial-JOB-GENERATION/  being written, or left behind
//   step-00000100.partial-JOB-GENERATION+TOKEN/  being made visible, or left behind
//   step-00000100.replaced-1/              was in the way of a newer one of that step
//   latest -> step-00000100
//   owner, owner.epoch                     who may change the directory (owner.h)
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/base/id.h"
#include "common/checkpoint/hf_index.h"
#include "common/model/model.h"

namespace takt::checkpoint {

inline constexpr char kManifestFile[] = "manifest.json";
inline constexpr char kConfigFile[] = "config.json";
inline constexpr char kKernelPlanFile[] = "kernel_plan.json";
inline constexpr char kLatestLink[] = "latest";
inline constexpr char kOwnerFile[] = "owner";
inline constexpr char kEpochFile[] = "owner.epoch";

std::string StepDirectoryName(StepId step);
std::string PartialDirectoryName(StepId step, std::string_view job, Generation generation);
// Returns the name of a partial directory while one process makes it visible. The token tells that
// process from all others.
std::string ClaimedDirectoryName(StepId step, std::string_view job, Generation generation,
                                 std::string_view token);
std::string ReplacedDirectoryName(StepId step, int number);

enum class StepDirectoryKind : std::uint8_t { kStep, kPartial, kReplaced };

struct StepDirectory {
  StepId step;
  StepDirectoryKind kind = StepDirectoryKind::kStep;
  std::string suffix;  // after ".partial-" ("JOB-GENERATION", ...) or ".replaced-" ("1")
};

// Empty: the name is not one of these.
std::optional<StepDirectory> ParseStepDirectoryName(std::string_view name);

// Says who writes, or wrote, a partial directory.
struct PartialWriter {
  std::string job;
  Generation generation;
  bool operator==(const PartialWriter&) const = default;
};

// Reads the suffix of a partial directory, claimed or not. Empty: no job wrote it.
std::optional<PartialWriter> WriterOf(std::string_view suffix);

// Returns the names of the files of a layer. They hold its own parameters, so a tied one is in the
// file of the layer that owns it.
std::string ModelFile(LayerId layer, int num_layers);
std::string OptimizerFile(LayerId layer, int num_layers);
bool IsOptimizerFile(std::string_view name);

// Returns the names of the tensors of an optimizer file: the first and the second moment of a
// parameter, as far as the optimizer has them, and its last update where errors are fed back.
// Without any of them there are no such files.
std::string FirstMomentName(std::string_view parameter);
std::string SecondMomentName(std::string_view parameter);
std::string LastUpdateName(std::string_view parameter);

// Returns the text of kIndexFile (hf_index.h). With it the directory itself opens as a sharded
// Hugging Face model.
std::string FormatIndex(const model::Model& model);

}  // namespace takt::checkpoint
