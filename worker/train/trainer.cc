// SPDX-License-Identifier: Apache-2.0
#include "worker/train/trainer.h"

#include "worker/train/emulated_trainer.h"
#include "worker/train/model_trainer.h"

namespace takt::train {

absl::StatusOr<std::unique_ptr<Trainer>> CreateTrainer(const TrainerOptions& options) {
  if (options.model->config.family == model::Family::kEmulated)
    return CreateEmulatedTrainer(options);
  return CreateModelTrainer(options);
}

}  // namespace takt::train
