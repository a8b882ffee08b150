// SPDX-License-Identifier: Apache-2.0
#include "coordinator/membership/membership.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/base/version.h"
#include "coordinator/timeouts/admission.h"

namespace takt::membership {
namespace {

constexpr std::size_t kMaxSuperseded = 16;  // per name

// True if a process that says this still has what it was held for.
bool Confirms(const control::Hello& hello, const Hold& hold) {
  if (hold.rank == kNoRank) return true;
  return hello.running && hold == Hold{hello.running->key, hello.running->rank};
}

std::string SilentFor(absl::Duration silence) {
  return absl::StrCat("nothing heard from it for ",
                      absl::FormatDuration(absl::Floor(silence, absl::Milliseconds(100))));
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

Loss Membership::Expect(const std::string& name, const std::string& incarnation, Hold hold,
                        Moment now) {
  Worker& worker = workers_[name];
  worker.hello.worker = name;
  worker.hello.incarnation = incarnation;
  worker.hold = std::move(hold);
  worker.last_heard = now.steady;
  worker.expires = now.steady + options_.return_grace;
  return SetAway(worker, "not heard of since the coordinator was started");
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
  if (worker.attached() && !same) {
    return absl::AbortedError(absl::StrCat("worker name ", hello.worker, " is held by incarnation ",
                                           worker.hello.incarnation,
                                           ", which is alive; give this worker another name"));
  }
  Attached attached;
  if (!same && worker.away) {
    attached.loss = Lose(worker, "it came back as a new process");
  } else if (worker.hold && !Confirms(hello, *worker.hold)) {
    attached.loss = Lose(worker, "it came back without its rank");
  }
  // Handshakes take longer where cores are busy. While some of a crowd come back, the others are
  // still waited for.
  if (worker.away && worker.session == SessionId(0) && now.steady < patient_until_) {
    patient_until_ = std::max(patient_until_, std::min(now.steady + options_.redial, crowd_until_));
  }
  attached.replaced = worker.session;
  if (!same && !worker.hello.incarnation.empty()) {
    superseded.push_back(worker.hello.incarnation);
    if (superseded.size() > kMaxSuperseded) superseded.pop_front();
  }
  sessions_.erase(worker.session);
  ForgetDevice(worker);
  worker.hello = hello;
  if (hello.device) workers_of_gpu_[hello.device->uuid].insert(hello.worker);
  worker.session = session;
  worker.leaving = worker.leaving && same;
  worker.refuses.clear();
  worker.away.reset();
  worker.attach_time = worker.last_seen = now.wall;
  worker.last_heard = now.steady;
  worker.expires = now.steady + options_.lease;
  sessions_[session] = hello.worker;
  return attached;
}

// Each GPU has one rank: two would silently halve each other's memory and speed.
absl::Status Membership::CheckDevice(const control::Hello& hello) const {
  if (!hello.device) return absl::OkStatus();
  const auto same_gpu = workers_of_gpu_.find(hello.device->uuid);
  if (same_gpu == workers_of_gpu_.end()) return absl::OkStatus();
  for (const std::string& name : same_gpu->second) {
    const Worker* const found = Find(name);
    if (name == hello.worker || found == nullptr) continue;
    const Worker& other = *found;
    const bool may_compute = other.state() != WorkerState::kLost && other.hello.device.has_value();
    if (!may_compute) continue;
    const Device& device = *other.hello.device;
    if (device.uuid != hello.device->uuid || (device.shared && hello.device->shared)) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "worker ", hello.worker, " on ", hello.host, " computes on the same GPU as worker ", name,
        " on ", other.hello.host, ": ", device.name, ", ", device.uuid, "; start ", hello.worker,
        " with --device cuda:N of another one, or both with --share-device"));
  }
  return absl::OkStatus();
}

void Membership::ForgetDevice(const Worker& worker) {
  if (!worker.hello.device) return;
  const auto it = workers_of_gpu_.find(worker.hello.device->uuid);
  if (it == workers_of_gpu_.end()) return;
  it->second.erase(worker.hello.worker);
  if (it->second.empty()) workers_of_gpu_.erase(it);
}

bool Membership::Heard(SessionId session, Moment now) {
  const auto it = sessions_.find(session);
  if (it == sessions_.end()) return false;
  Worker& worker = workers_.at(it->second);
  worker.last_seen = now.wall;
  worker.last_heard = std::max(worker.last_heard, now.steady);
  worker.expires = std::max(worker.expires, worker.last_heard + options_.lease);
  return std::exchange(worker.away, std::nullopt).has_value();
}

std::optional<Loss> Membership::Detach(SessionId session, std::string reason, Moment now) {
  const auto it = sessions_.find(session);
  if (it == sessions_.end()) return std::nullopt;
  Worker& worker = workers_.at(it->second);
  if (worker.leaving) return Lose(worker, std::move(reason));
  sessions_.erase(it);
  worker.session = SessionId(0);
  // If many lose their streams at once, they are admitted one after the other, and nobody knows who
  // is the last. The lost ones do not count.
  const std::int64_t away = std::ssize(workers_) - std::ssize(sessions_) - num_lost_;
  const absl::Duration queue = timeouts::ReturnTime(static_cast<int>(away));
  if (away <= 1 || now.steady >= crowd_until_) crowd_since_ = now.steady;
  if (queue > absl::ZeroDuration()) {
    crowd_until_ = std::max(crowd_until_, crowd_since_ + options_.crowd_grace + queue);
    patient_until_ = std::max(patient_until_, now.steady + options_.redial + queue);
  }
  worker.expires = std::max(now.steady + options_.redial, patient_until_);
  Loss loss = SetAway(worker, std::move(reason));
  loss.session = session;
  return loss;
}

void Membership::RenewLeases(Moment now, absl::Duration patience) {
  patient_until_ = std::max(patient_until_, now.steady + patience);
  for (auto& [name, worker] : workers_) {
    if (worker.state() == WorkerState::kLost) continue;
    worker.last_heard = std::max(worker.last_heard, now.steady);
    worker.expires = std::max({worker.expires, now.steady + options_.lease, patient_until_});
  }
}

bool Membership::IsVouchedFor(const Worker& worker, const Voucher& voucher, Moment now) const {
  // Without it no other rank gets further than about a step. Soon after its last word, what they
  // did may be the end of that step, so they must not pause. Later they may, for as long as a
  // lease.
  const bool soon = now.steady - worker.last_heard < options_.lease;
  const absl::Duration patience = std::max(soon ? options_.redial : options_.lease,
                                           std::min(voucher.step, options_.longest_step));
  return now.steady - voucher.progress < patience;
}

bool Membership::IsCutOff(Moment now) {
  int known = 0, silent = 0;
  for (const auto& [name, worker] : workers_) {
    if (worker.state() == WorkerState::kLost || worker.leaving) continue;
    ++known;
    // Leases do not expire in the same moment. Half of one is more silence than chance makes.
    silent +=
        worker.session == SessionId(0) || now.steady - worker.last_heard >= options_.lease / 2;
  }
  if (silent < 2 || 2 * silent <= known) {
    // Those that are still silent have as long to come back as after a restart.
    if (std::exchange(cut_off_since_, std::nullopt)) RenewLeases(now, options_.return_grace);
    return false;
  }
  // Where nobody is heard, nobody can be told anything either, so there is nothing to decide.
  if (!cut_off_since_ || silent == known) cut_off_since_ = now.steady;
  return now.steady - *cut_off_since_ < options_.cut_off;
}

std::vector<Loss> Membership::Expire(Moment now, const Vouch& vouch) {
  std::vector<Loss> losses;
  const bool cut_off = IsCutOff(now);
  num_lost_ = 0;
  for (auto it = workers_.begin(); it != workers_.end();) {
    Worker& worker = it->second;
    const absl::Duration silence = now.steady - worker.last_heard;
    const bool has_stream = worker.session != SessionId(0);
    const absl::Duration until =
        has_stream ? worker.expires : std::max(worker.expires, patient_until_);
    if (worker.state() != WorkerState::kLost && now.steady >= until) {
      std::string reason = has_stream ? SilentFor(silence) : *worker.away;
      if (!cut_off && !IsVouchedFor(worker, vouch(worker), now)) {
        losses.push_back(Lose(worker, std::move(reason)));
      } else if (!worker.away) {
        losses.push_back(SetAway(worker, std::move(reason)));
      }
    }
    const bool lost = worker.state() == WorkerState::kLost;
    if (lost && !worker.drained && silence >= options_.forget_after) {
      superseded_.erase(it->first);
      ForgetDevice(worker);
      it = workers_.erase(it);
    } else {
      num_lost_ += lost ? 1 : 0;
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

void Membership::SetRefuses(const std::string& name, std::string why) {
  if (const auto it = workers_.find(name); it != workers_.end())
    it->second.refuses = std::move(why);
}

void Membership::SetBlame(const std::string& name, Blame blame) {
  if (const auto it = workers_.find(name); it != workers_.end())
    it->second.blame = std::move(blame);
}

void Membership::SetHold(const std::string& name, Hold hold) {
  workers_.at(name).hold = std::move(hold);
}

bool Membership::Release(const std::string& name, const control::JobKey& key) {
  const auto it = workers_.find(name);
  if (it == workers_.end() || !it->second.hold || it->second.hold->key != key) return false;
  it->second.hold.reset();
  return true;
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
  worker.away.reset();
  return loss;
}

Loss Membership::SetAway(Worker& worker, std::string reason) {
  worker.away = std::move(reason);
  return {.worker = worker.hello.worker,
          .incarnation = worker.hello.incarnation,
          .reason = *worker.away,
          .hold = worker.hold,
          .away = true};
}

}  // namespace takt::membership
