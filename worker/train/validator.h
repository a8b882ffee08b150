// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "worker/train/forward_pass.h"
#include "worker/train/loss_share.h"
#include "worker/train/trainer.h"

namespace takt::train {

// groups: borrowed for the validator's life.
std::unique_ptr<Validator> CreateValidator(ForwardPass pass, ResultGroups groups);

}  // namespace takt::train
