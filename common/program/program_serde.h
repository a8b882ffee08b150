// SPDX-License-Identifier: Apache-2.0
// Programs to and from their stored and pushed form.
#pragma once

#include "absl/status/statusor.h"
#include "common/program/program.h"
#include "takt/v1/program.pb.h"

namespace takt::program {

v1::Program ToProto(const Program& program);

// kFailedPrecondition: the program has another version of the format; the error names both.
// kInvalidArgument: as CheckProgram.
absl::StatusOr<Program> FromProto(const v1::Program& proto);

}  // namespace takt::program
