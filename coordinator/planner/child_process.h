// SPDX-License-Identifier: Apache-2.0
// Runs a program that reads its input, writes its output and ends.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock.h"

namespace takt::planner {

struct ChildOptions {
  std::vector<std::string> argv;  // argv[0] is the path of the program
  std::string input;              // its standard input
  absl::Duration time_limit = absl::InfiniteDuration();
  int stop_fd = -1;  // the child is killed once this can be read; -1: never
  const Clock* clock = &Clock::Real();
};

struct ChildEnd {
  enum class Cause { kEnded, kTimedOut, kStopped };
  Cause cause = Cause::kEnded;
  int wait_status = 0;     // as of waitpid
  std::string output;      // its standard output
  std::string last_words;  // the last line of its standard error, which is not empty
};

// Runs the program, and returns when it has ended and is reaped, so that nothing of it is left. The
// child inherits no other descriptor, blocks no signal, and is in the caller's process group.
// Errors: kResourceExhausted (no descriptor or process is free), kInternal (no such program).
absl::StatusOr<ChildEnd> RunChild(const ChildOptions& options);

}  // namespace takt::planner
