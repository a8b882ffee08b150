// SPDX-License-Identifier: Apache-2.0
// Follows a job to its end across broken streams and restarts of the coordinator.
#pragma once

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cli/base/context.h"
#include "cli/client/client.h"

namespace takt::cli {

struct FollowOptions {
  std::string job;
  std::int64_t after_step = 0;
  // If the coordinator is away for longer, the result is kUnavailable.
  absl::Duration patience = absl::Seconds(60);
  // If the job has neither changed its state nor reported a step for so long, the result is
  // kDeadlineExceeded.
  absl::Duration longest_silence = absl::InfiniteDuration();
  std::function<void(const v1::Job&)> on_job = [](const v1::Job&) {};
  // Gets each step once, ascending. Returns false to end the following (kCancelled).
  std::function<bool(const v1::StepReport&)> on_step = [](const v1::StepReport&) { return true; };
  // Gets where the time of the newest explained step went.
  std::function<void(const v1::StepSplit&)> on_split = [](const v1::StepSplit&) {};
  // Gets a line for people: the coordinator is away, or is back.
  std::function<void(std::string_view)> say = [](std::string_view) {};
};

// Returns the job when it has ended. Errors: kCancelled (`stop`, or on_step returned false),
// kUnavailable, kDeadlineExceeded, kNotFound.
absl::StatusOr<v1::Job> FollowJob(Client& client, Client::StreamStop& stop,
                                  const FollowOptions& options);

// The same, but Ctrl-C ends it, too. Ctrl-C and `stop` do not change the job: its outcome stays
// unknown (kUnknown).
absl::StatusOr<v1::Job> FollowUntilInterrupted(Client& client, Client::StreamStop& stop,
                                               const FollowOptions& options);
absl::StatusOr<v1::Job> FollowUntilInterrupted(Client& client, const FollowOptions& options);

// Follows with a StepPrinter and returns the verdict of the job. Ctrl-C does not change the job.
absl::StatusOr<ExitCode> WatchUntilEnd(const Context& context, Client& client,
                                       const std::string& name, std::int64_t after_step);
// The same without steps, for `wait` and `submit --wait`. Prints the job at its end.
absl::StatusOr<ExitCode> WaitUntilEnd(const Context& context, Client& client,
                                      const std::string& name);

}  // namespace takt::cli
