// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/status/statusor.h"
#include "common/control/assignment.h"
#include "takt/v1/assignment.pb.h"

namespace takt::control {

v1::BoundRank ToProto(const BoundRank& bound);
BoundRank FromProto(const v1::BoundRank& proto);

v1::StageAssignment ToProto(const mesh::Stage& stage);
// This checks nothing: it reads what this program has written itself.
mesh::Stage FromProto(const v1::StageAssignment& proto);

v1::Assignment ToProto(const Assignment& assignment);
// Errors: kInvalidArgument for a job spec, program, partition, rank or secret that cannot be one,
// or for parts that disagree with each other.
absl::StatusOr<Assignment> FromProto(const v1::Assignment& proto);

}  // namespace takt::control
