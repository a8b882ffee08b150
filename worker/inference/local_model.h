// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "common/model/model.h"
#include "worker/backend/backend.h"
#include "worker/train/parameter_store.h"

namespace takt::inference {

// A model on the cores of this machine, with its weights in f32 and nothing that only training
// needs. One caller at a time.
class LocalModel {
 public:
  // Reads a Hugging Face folder, which the directory of a checkpoint's step is too. folder: an
  // absolute path. threads: those that compute.
  // Errors, with a FieldError of CHECKPOINT: kInvalidArgument (config.json is of no family that
  // Takt has, or the weights are not those of the model), kFailedPrecondition (a file is missing or
  // cannot be read); kResourceExhausted.
  static absl::StatusOr<std::unique_ptr<LocalModel>> Open(const std::string& folder, int threads);
  // Makes a model with random weights. Errors: kInvalidArgument (the config), kResourceExhausted.
  static absl::StatusOr<std::unique_ptr<LocalModel>> MakeRandom(const model::ModelConfig& config,
                                                                int threads);

  const model::ModelConfig& config() const { return model_.config; }
  // Returns the bytes of the weights that the passes of one token read. It leaves out the tables of
  // which a token takes one row, and the experts that a token does not choose.
  std::int64_t bytes_per_token() const;

  backend::Backend& backend() const { return *backend_; }
  const train::ParameterStore& weights() const { return *weights_; }

 private:
  explicit LocalModel(model::Model model) : model_(std::move(model)) {}
  static absl::StatusOr<std::unique_ptr<LocalModel>> Create(const model::ModelConfig& config,
                                                            const std::string& folder, int threads);

  const model::Model model_;
  std::unique_ptr<backend::Backend> backend_;       // outlives the weights
  std::unique_ptr<train::ParameterStore> weights_;  // borrows the model
};

}  // namespace takt::inference
