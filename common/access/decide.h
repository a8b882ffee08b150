// SPDX-License-Identifier: Apache-2.0
// May this peer do that? Pure; refusals are kPermissionDenied (kUnauthenticated: showed no
// certificate) and say who may and what to do, as a FieldError too.
#pragma once

#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/access/identity.h"

namespace takt::access {

// The method's row in the table. method: "/package.Service/Method".
absl::Status MayCall(const Identity& who, absl::string_view method);

// Subject::kJob and kJobs. owner: of the job, as Identity::ToString() gave it; empty: it has none.
absl::Status MayUseJob(const Identity& who, absl::string_view job, absl::string_view owner);

// Subject::kWorker. worker: the name in the request.
absl::Status MaySpeakFor(const Identity& who, absl::string_view worker);

// Subject::kGang. workers: that hold the job's ranks now.
absl::Status MayMeet(const Identity& who, absl::string_view job,
                     std::span<const std::string> workers);

}  // namespace takt::access
