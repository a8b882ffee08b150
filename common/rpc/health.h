// SPDX-License-Identifier: Apache-2.0
// Tells whether a daemon is well to programs that restart it or send it work. It is the standard
// gRPC health service on a Unix socket, and a client of it. Services: "live" (it makes progress; if
// not, restart it) and "ready" (it takes work).
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace takt::health {

// Returns OK, or one line that says why not. It is called on any thread, once for each question,
// and answers in seconds.
using Check = std::function<absl::Status()>;

// Asks the one thread that decides things for a sign of life. `ask(answer)` makes that thread call
// `answer` and does not block. A thread that hangs is asked once, not at every check.
Check Answers(std::function<void(std::function<void()> answer)> ask,
              absl::Duration patience = absl::Seconds(5));

// Serves until it is destroyed. Its destructor waits for the checks that run.
class Server {
 public:
  // Replaces a socket that an earlier process left. checks: by service. Errors: kInvalidArgument
  // (FieldError on --health-socket: the path is longer than a Unix socket's may be); kUnavailable
  // (cannot bind).
  static absl::StatusOr<std::unique_ptr<Server>> Start(const std::string& socket,
                                                       std::map<std::string, Check> checks);
  virtual ~Server() = default;
};

// Asks the daemon behind `socket`. Errors: kFailedPrecondition (it is not well, and says why),
// kNotFound (no such service), kUnavailable and kDeadlineExceeded (no answer), kInvalidArgument (no
// socket named).
absl::Status Ask(const std::string& socket, const std::string& service);

// Asks as a program does: it prints one line and returns the exit code, 0 or 1.
int Report(const std::string& program, const std::string& socket, const std::string& service);

}  // namespace takt::health
