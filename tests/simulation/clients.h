// SPDX-License-Identifier: Apache-2.0
// Users and operators. Each job has one user, who waits for an answer before the next request, and
// sends a request again with the same id when no answer came. One operator drains workers.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tests/simulation/answer_checker.h"
#include "tests/simulation/coordinator_process.h"
#include "tests/simulation/world.h"

namespace takt::simulation {

// One thread.
class Clients final {
 public:
  // Both are borrowed.
  Clients(World* world, CoordinatorProcess* coordinator);
  Clients(const Clients&) = delete;
  Clients& operator=(const Clients&) = delete;

  // Some user asks for something, as a fault of the kind kRequests.
  void AskForSomething();
  // The operator drains this worker for a while.
  void Drain(const std::string& worker);
  // The coordinator has lost its state: users adopt their jobs.
  void AdoptJobs();
  // From now on users only resume jobs that are paused, and no worker stays drained.
  void Heal();

  // True if all jobs were submitted and no request waits for its answer.
  bool idle() const;

 private:
  struct User {
    std::deque<Request> waiting;
    bool asking = false;  // the first of `waiting` is under way
    int attempt = 0;      // of submissions
    std::int64_t sent = 0;
  };

  void Ask(const std::string& user, Method method, const std::string& target);
  void SendNext(const std::string& user);
  void Answered(const std::string& user, std::int64_t sent, const absl::Status& status);
  void ResumePaused();

  World& world_;
  CoordinatorProcess& coordinator_;
  std::map<std::string, User> users_;  // by job; the operator has an empty name
  std::int64_t last_request_ = 0;
  std::size_t not_submitted_;
  bool healed_ = false;
};

}  // namespace takt::simulation
