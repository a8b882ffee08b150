// SPDX-License-Identifier: Apache-2.0
// Copies the state of one store into another, of whatever kind each is.
#pragma once

#include "absl/status/status.h"
#include "coordinator/store/store.h"

namespace takt::store {

// Copies jobs with their steps and log lines, workers, and what was measured on them. The copy is
// the same cluster, and its epoch is the higher one of both. Answers to requests are not copied.
// from: others may write it; the copy has its jobs as they are at one moment.
// to: has never had a job. If an error ends the copy, it has none either.
// Errors: kFailedPrecondition (`to` has had jobs); those of the stores.  Blocks: for both.
absl::Status CopyState(Store& from, Store& to);

}  // namespace takt::store
