// SPDX-License-Identifier: Apache-2.0
// Programs of schedules without a flush: the pipeline never empties between steps.
// docs/programs.md, "Without a flush".
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "common/program/lowering.h"
#include "common/program/program.h"
#include "common/schedule/schedule.h"

namespace takt::program {

// schedule: valid, with updates other than kFlush. options.stages: one for each stage.
// kInvalidArgument (FieldError): it is not 1F1B on one stage a rank with M >= P; or an option that
// needs all gradients of a step at once where each is applied on its own.
absl::StatusOr<std::vector<Program>> LowerWithoutFlush(const schedule::Schedule& schedule,
                                                       const LowerOptions& options);

}  // namespace takt::program
