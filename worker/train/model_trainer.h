// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "worker/train/trainer.h"

namespace takt::train {

// The trainer of models made of layers with kernels (layer.h).
absl::StatusOr<std::unique_ptr<Trainer>> CreateModelTrainer(const TrainerOptions& options);

}  // namespace takt::train
