// SPDX-License-Identifier: Apache-2.0
// Decides what a peer may do, as pure functions. A refusal is kPermissionDenied, or
// kUnauthenticated if the peer showed no certificate. Its message and its FieldError say which
// peers may do it and what to do.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/access/identity.h"

namespace takt::access {

// Decides by the method's row in the table. method: "/package.Service/Method".
absl::Status MayCall(const Identity& who, absl::string_view method);

// Decides for Subject::kJob and kJobs. owner: the job's owner as Identity::ToString() gave it;
// empty: it has none.
absl::Status MayUseJob(const Identity& who, absl::string_view job, absl::string_view owner);

// Decides for Subject::kWorker and kHost. worker: the name in the request.
absl::Status MaySpeakFor(const Identity& who, absl::string_view worker);

// Decides for Subject::kGang. holds_rank: the worker of that name, or one of that host, holds a
// rank of the job now.
absl::Status MayMeet(const Identity& who, absl::string_view job, bool holds_rank);

}  // namespace takt::access
