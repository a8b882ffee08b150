// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "worker/train/trainer.h"

namespace takt::train {

// The trainer of `family: emulated`. F, I, W and B take their time by sleeping. Messages carry a
// pattern that says what they are, and their consumer verifies it. Everything else is immediate,
// unless the layers have parameters (emulated_parameters.h). Loss and gradient norm are made up
// from the step alone. Errors: those of EmulatedParameters.
absl::StatusOr<std::unique_ptr<Trainer>> CreateEmulatedTrainer(const TrainerOptions& options);

}  // namespace takt::train
