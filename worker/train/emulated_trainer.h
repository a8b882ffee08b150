// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "worker/train/trainer.h"

namespace takt::train {

// `family: emulated`: F, I, W and B take their time by sleeping, messages carry a pattern that says
// what they are and that their consumer verifies, everything else is immediate. Loss and gradient
// norm are made up from the step alone.
std::unique_ptr<Trainer> CreateEmulatedTrainer(const TrainerOptions& options);

}  // namespace takt::train
