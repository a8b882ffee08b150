// SPDX-License-Identifier: Apache-2.0
// Lists the ops of a whole job, so that kernels can be chosen before any of them runs.
#pragma once

#include "absl/status/status.h"
#include "common/config/job_spec.h"
#include "common/mesh/mesh.h"
#include "worker/backend/meta/meta_backend.h"

namespace takt::session {

// Calls `listener` for the ops that a job runs on ranks that compute on `device`. It is called at
// least once for each shape that any rank may run, wherever the stages of `partition` begin and
// end. Only the sizes of an op, and which of its pointers are null, have a meaning.
// Errors: kInvalidArgument (no such job), those of `listener`.
absl::Status ShowOps(const config::JobSpec& job, const mesh::Partition& partition,
                     config::DeviceKind device, const backend::OpListener& listener);

}  // namespace takt::session
