// SPDX-License-Identifier: Apache-2.0
// The exit codes of `takt`. Scripts rely on these numbers: never change one.
#pragma once

#include "absl/status/status.h"
#include "takt/v1/job.pb.h"

namespace takt::cli {

enum class ExitCode : int {
  kDone = 0,
  kFailed = 1,        // the job or the check failed, or the request did not fit the state
  kInvalidInput = 2,  // wrong usage or invalid input
  kUnreachable = 3,   // no coordinator answers
  kNotFound = 4,
  kRefused = 5,  // no permission
  // A change was requested and no answer came: it may or may not have happened.
  kOutcomeUnknown = 6,
};

// Maps kUnknown to kOutcomeUnknown: cli/client/client.h returns it for such a change.
ExitCode ExitCodeOf(const absl::Status& status);

bool HasEnded(v1::JobState state);

// Returns OK if the job succeeded. Otherwise it returns the reason, with the FieldErrors of invalid
// input; ExitCodeOf(it) is the verdict.
absl::Status ErrorOf(const v1::Job& job);

// Returns the verdict of a job that ended: kDone, kFailed (also when cancelled), kInvalidInput.
ExitCode VerdictOf(const v1::Job& job);

}  // namespace takt::cli
