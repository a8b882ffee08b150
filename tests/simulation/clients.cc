// SPDX-License-Identifier: Apache-2.0
#include "tests/simulation/clients.h"

#include <iterator>

#include "absl/strings/str_cat.h"

namespace takt::simulation {
namespace {

// A request without an answer is sent again after this time.
constexpr absl::Duration kPatience = absl::Seconds(3);
constexpr absl::Duration kLookAgain = absl::Seconds(5);
constexpr absl::Duration kAdoptAgain = absl::Seconds(1);
constexpr char kOperator[] = "";

}  // namespace

Clients::Clients(World* world, CoordinatorProcess* coordinator)
    : world_(*world), coordinator_(*coordinator), not_submitted_(world->config.jobs.size()) {
  for (const JobShape& job : world_.config.jobs) {
    world_.oracle.SubmitsTo(job.name, job.saves ? job.name : "");
    world_.loop.At(job.submit_at, [this, name = job.name] {
      --not_submitted_;
      Ask(name, Method::kSubmit, name);
    });
  }
}

void Clients::Ask(const std::string& user, Method method, const std::string& target) {
  User& asking = users_[user];
  if (method == Method::kSubmit) ++asking.attempt;
  asking.waiting.push_back({.id = absl::StrCat("request-", ++last_request_),
                            .method = method,
                            .target = target,
                            .attempt = asking.attempt});
  SendNext(user);
}

void Clients::SendNext(const std::string& user) {
  User& asking = users_[user];
  if (asking.asking || asking.waiting.empty()) return;
  asking.asking = true;
  const std::int64_t sent = ++asking.sent;
  const Request request = asking.waiting.front();
  world_.trace.Add("client", Name(request.method), " ", request.target, " (", request.id, ")");
  const auto delay = [this] {
    return world_.random.Between(absl::Milliseconds(1), absl::Milliseconds(20));
  };
  world_.loop.After(delay(), [this, user, sent, request, delay] {
    coordinator_.Handle(request, [this, user, sent, delay](const absl::Status& status) {
      world_.loop.After(delay(), [this, user, sent, status] { Answered(user, sent, status); });
    });
  });
  world_.loop.After(
      kPatience, [this, user, sent] { Answered(user, sent, absl::UnavailableError("no answer")); });
}

void Clients::Answered(const std::string& user, std::int64_t sent, const absl::Status& status) {
  User& asking = users_[user];
  if (!asking.asking || asking.sent != sent) return;
  asking.asking = false;
  // No answer, or a coordinator that is read-only. The request keeps its id.
  if (absl::IsUnavailable(status) || absl::IsResourceExhausted(status)) {
    world_.loop.After(absl::Milliseconds(500), [this, user] { SendNext(user); });
    return;
  }
  const Request request = asking.waiting.front();
  asking.waiting.pop_front();
  world_.trace.Add("client", "answer to ", request.id, ": ", status.ToString());
  // A job can be adopted once all its ranks are attached and described.
  if (request.method == Method::kAdopt && !status.ok()) {
    world_.loop.After(kAdoptAgain,
                      [this, user, name = request.target] { Ask(user, Method::kAdopt, name); });
  }
  // What was deleted is submitted again.
  if (request.method == Method::kDelete && status.ok() && !healed_)
    return Ask(user, Method::kSubmit, request.target);
  SendNext(user);
}

void Clients::AskForSomething() {
  const std::vector<JobShape>& jobs = world_.config.jobs;
  const std::string name = jobs[world_.random.Between(0, std::ssize(jobs) - 1)].name;
  const double draw = static_cast<double>(world_.random.Between(0, 99)) / 100;
  if (!users_.contains(name) || !users_[name].waiting.empty()) return;
  if (draw < 0.35) return Ask(name, Method::kPause, name);
  if (draw < 0.8) return Ask(name, Method::kResume, name);
  if (draw < 0.9) return Ask(name, Method::kCancel, name);
  Ask(name, Method::kDelete, name);
}

void Clients::Drain(const std::string& worker) {
  Ask(kOperator, Method::kDrain, worker);
  world_.loop.After(world_.random.Between(absl::Seconds(1), absl::Seconds(20)),
                    [this, worker] { Ask(kOperator, Method::kUndrain, worker); });
}

void Clients::AdoptJobs() {
  for (const JobShape& job : world_.config.jobs) Ask(job.name, Method::kAdopt, job.name);
}

void Clients::Heal() {
  healed_ = true;
  ResumePaused();
}

void Clients::ResumePaused() {
  for (const auto& [id, job] : world_.oracle.jobs()) {
    if (job.state == store::JobState::kPaused && users_[job.name].waiting.empty())
      Ask(job.name, Method::kResume, job.name);
  }
  world_.loop.After(kLookAgain, [this] { ResumePaused(); });
}

bool Clients::idle() const {
  for (const auto& [name, user] : users_) {
    if (!user.waiting.empty()) return false;
  }
  return not_submitted_ == 0;
}

}  // namespace takt::simulation
