// SPDX-License-Identifier: Apache-2.0
// The ops of a whole job, for the choice of kernels before any of them runs.
#pragma once

#include "absl/status/status.h"
#include "common/config/job_spec.h"
#include "common/mesh/mesh.h"
#include "worker/backend/meta/meta_backend.h"

namespace takt::session {

// Calls `listener` for the ops of a job on ranks that compute on `device`: for each shape that any
// rank may run, wherever the stages of `partition` begin and end, at least once. Only the sizes of
// an op matter, and which of its pointers are null.
// Errors: kInvalidArgument (no such job), those of `listener`.
absl::Status ShowOps(const config::JobSpec& job, const mesh::Partition& partition,
                     config::DeviceKind device, const backend::OpListener& listener);

}  // namespace takt::session
