// SPDX-License-Identifier: Apache-2.0
// Initial weights. Random ones depend only on (seed, parameter name), so that every partition
// starts from the same bits.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/config/job_spec.h"
#include "common/model/model.h"
#include "worker/backend/backend.h"
#include "worker/train/parameter_store.h"

namespace takt::train {

// Fills `out` (the elements of the whole parameter from number `first` on) with zeros, ones, or
// normal numbers of mean 0 and the parameter's stddev. Element i is a function of (seed, name, i),
// whichever rank has it: a counter-based generator (SplitMix64 keyed by XXH3-64 of the name)
// through the Box-Muller transform in double. It is pure, so any thread may fill any part of any
// parameter.
void FillInitialWeights(const model::Parameter& parameter, std::uint64_t seed, std::span<float> out,
                        std::int64_t first = 0);

// Sets the weights of every parameter in `store`: from job.init_from (a Hugging Face folder under
// data_root; it reads only those pages of the weights that have this rank's tensors), else random
// ones from job.seed.
// Errors, all with a FieldError of model.init_from: kInvalidArgument (whatever HfFolder finds
// wrong; a tensor is missing or has another shape or dtype), kFailedPrecondition (SharedInput: the
// folder is not there, or cannot be read here).
absl::Status InitializeWeights(const config::JobSpec& job, std::string_view data_root,
                               const ParameterStore& store, backend::Backend& backend);

// Returns the text of config.json for the checkpoints of a job that starts from its initial
// weights: job.model, with what init_from's config.json says besides the shape, and the dtype of
// its weights. (A job that resumes takes the text of the checkpoint from which it resumes.) The
// model must not be emulated.
// Errors: as InitializeWeights.
absl::StatusOr<std::string> FormatCheckpointConfig(const config::JobSpec& job,
                                                   std::string_view data_root);

}  // namespace takt::train
