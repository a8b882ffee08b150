// SPDX-License-Identifier: Apache-2.0
// What `takt` tells the shell. Scripts rely on these numbers: never change one.
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
  kOutcomeUnknown =
      6,  // a change was asked for and no answer came: it may or may not have happened
};

// kUnknown stands for an outcome that is not known (client.h makes it so).
ExitCode ExitCodeOf(const absl::Status& status);

bool HasEnded(v1::JobState state);

// OK if the job succeeded, else why it did not, with the FieldErrors of invalid input.
// ExitCodeOf(it) is the verdict.
absl::Status ErrorOf(const v1::Job& job);

// The verdict of a job that ended: kDone, kFailed (also when cancelled), kInvalidInput.
ExitCode VerdictOf(const v1::Job& job);

}  // namespace takt::cli
