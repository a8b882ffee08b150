// SPDX-License-Identifier: Apache-2.0
#include "coordinator/membership/membership.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/base/version.h"

namespace takt::membership {
namespace {

constexpr std::size_t kMaxSuperseded = 16;  // per name

bool IsRunning(const Hold& hold, const control::Hello& hello) {
  return hello.running && hold == Hold{hello.running->key, hello.running->rank};
}

}  // namespace

absl::Status CheckProtocol(const control::Hello& hello) {
  const int offered = hello.protocol_version;
  if (offered >= kOldestProtocolVersion && offered <= kProtocolVersion) return absl::OkStatus();
  const std::string what_to_do =
      offered < kOldestProtocolVersion
          ? absl::StrCat("upgrade takt-worker on host ", hello.host, " and start it again")
          : "upgrade the coordinator";
  return absl::FailedPreconditionError(
      absl::StrCat("worker ", hello.worker, " speaks protocol version ", offered,
                   ", this coordinator speaks version ", kProtocolVersion,
                   " and accepts versions from ", kOldestProtocolVersion, "; ", what_to_do));
}

Membership::Membership(MembershipOptions options, const std::set<std::string>& drained)
    : options_(options) {
  for (const std::string& name : drained) {
    workers_[name].hello.worker = name;
    workers_[name].drained = true;
  }
}

absl::StatusOr<Membership::Attached> Membership::Attach(const control::Hello& hello,
                                                        SessionId session, Moment now) {
  if (hello.worker.empty() || hello.incarnation.empty()) {
    return InvalidField({.field = hello.worker.empty() ? "hello.worker" : "hello.incarnation",
                         .rule = "must not be empty",
                         .fix = "give the worker a name and a random incarnation"});
  }
  RETURN_IF_ERROR(CheckProtocol(hello));
  RETURN_IF_ERROR(CheckDevice(hello));
  std::deque<std::string>& superseded = superseded_[hello.worker];
  if (std::ranges::find(superseded, hello.incarnation) != superseded.end()) {
    return absl::AbortedError(absl::StrCat("worker ", hello.worker, " incarnation ",
                                           hello.incarnation,
                                           " was followed by another one: end this process"));
  }

  Worker& worker = workers_[hello.worker];
  const bool same = worker.hello.incarnation == hello.incarnation;
  Attached attached;
  if (worker.session != SessionId(0)) {
    if (!same) {
      return absl::AbortedError(absl::StrCat("worker name ", hello.worker,
                                             " is held by incarnation ", worker.hello.incarnation,
                                             ", which is alive; give this worker another name"));
    }
    const std::optional<Hold> hold = worker.hold;
    attached.replaced = Lose(worker, "its stream was replaced by a new one");
    if (hold.has_value() && IsRunning(*hold, hello)) {
      worker.hold = hold;
      attached.replaced->hold.reset();
    }
  }
  if (!same && !worker.hello.incarnation.empty()) {
    superseded.push_back(worker.hello.incarnation);
    if (superseded.size() > kMaxSuperseded) superseded.pop_front();
  }
  worker.hello = hello;
  worker.session = session;
  worker.leaving = worker.leaving && same;
  worker.attach_time = worker.last_seen = now.wall;
  worker.last_heard = now.steady;
  sessions_[session] = hello.worker;
  return attached;
}

// Each GPU has one rank: two would silently halve each other's memory and speed.
absl::Status Membership::CheckDevice(const control::Hello& hello) const {
  if (!hello.device) return absl::OkStatus();
  for (const auto& [name, other] : workers_) {
    if (name == hello.worker || other.session == SessionId(0) || !other.hello.device) continue;
    const Device& device = *other.hello.device;
    if (device.uuid != hello.device->uuid || (device.shared && hello.device->shared)) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "worker ", hello.worker, " on ", hello.host, " computes on the same GPU as worker ", name,
        " on ", other.hello.host, ": ", device.name, ", ", device.uuid, "; start ", hello.worker,
        " with --device cuda:N of another one, or both with --share-device"));
  }
  return absl::OkStatus();
}

void Membership::Heard(SessionId session, Moment now) {
  const auto it = sessions_.find(session);
  if (it == sessions_.end()) return;
  Worker& worker = workers_.at(it->second);
  worker.last_seen = now.wall;
  worker.last_heard = std::max(worker.last_heard, now.steady);
}

std::optional<Loss> Membership::Detach(SessionId session, std::string reason) {
  const auto it = sessions_.find(session);
  if (it == sessions_.end()) return std::nullopt;
  return Lose(workers_.at(it->second), std::move(reason));
}

void Membership::RenewLeases(Moment now) {
  for (auto& [name, worker] : workers_) {
    if (worker.session != SessionId(0)) worker.last_heard = std::max(worker.last_heard, now.steady);
  }
}

std::vector<Loss> Membership::Expire(Moment now) {
  std::vector<Loss> losses;
  for (auto it = workers_.begin(); it != workers_.end();) {
    Worker& worker = it->second;
    const absl::Duration silence = now.steady - worker.last_heard;
    if (worker.session != SessionId(0) && silence >= options_.lease) {
      losses.push_back(Lose(worker, absl::StrCat("nothing heard from it for ",
                                                 absl::FormatDuration(absl::Floor(
                                                     silence, absl::Milliseconds(100))))));
    }
    if (worker.session == SessionId(0) && !worker.drained && silence >= options_.forget_after) {
      superseded_.erase(it->first);
      it = workers_.erase(it);
    } else {
      ++it;
    }
  }
  return losses;
}

absl::Status Membership::SetDrained(const std::string& name, bool drained) {
  const auto it = workers_.find(name);
  if (it == workers_.end()) {
    return absl::NotFoundError(
        absl::StrCat("no worker named ", name, "; `takt workers` lists them"));
  }
  it->second.drained = drained;
  return absl::OkStatus();
}

void Membership::SetLeaving(SessionId session) {
  const auto it = sessions_.find(session);
  if (it != sessions_.end()) workers_.at(it->second).leaving = true;
}

void Membership::SetHold(const std::string& name, Hold hold) {
  workers_.at(name).hold = std::move(hold);
}

void Membership::Release(const std::string& name) {
  if (const auto it = workers_.find(name); it != workers_.end()) it->second.hold.reset();
}

const Worker* Membership::Find(const std::string& name) const {
  const auto it = workers_.find(name);
  return it == workers_.end() ? nullptr : &it->second;
}

const Worker* Membership::FindSession(SessionId session) const {
  const auto it = sessions_.find(session);
  return it == sessions_.end() ? nullptr : &workers_.at(it->second);
}

Loss Membership::Lose(Worker& worker, std::string reason) {
  Loss loss{.worker = worker.hello.worker,
            .incarnation = worker.hello.incarnation,
            .session = worker.session,
            .reason = std::move(reason),
            .hold = std::exchange(worker.hold, std::nullopt)};
  sessions_.erase(worker.session);
  worker.session = SessionId(0);
  return loss;
}

}  // namespace takt::membership
