// SPDX-License-Identifier: Apache-2.0
// Which workers are alive: workers by name, their incarnations and leases, whether they are
// drained, and what they are held for. Pure logic: times come in as arguments, sessions are
// numbers, and nothing is sent from here.
//
//            Attach                       Hold
//   (lost) ----------> idle  <--------------------> busy
//      ^                 |        Release             |
//      +-----------------+----------------------------+   Detach (the stream ended), Expire (the
//                                                         lease is over)
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/id.h"
#include "common/control/attachment.h"
#include "coordinator/timeouts/timeouts.h"

namespace takt::membership {

using SessionId = Id<struct SessionTag, std::int64_t>;  // one control stream; 0: none

// Numbers equal takt.v1.WorkerState.
enum class WorkerState : std::uint8_t { kIdle = 1, kBusy = 2, kLost = 3 };

// What a worker is kept for: one rank of one generation of a job.
struct Hold {
  control::JobKey key;
  Rank rank;
  bool operator==(const Hold&) const = default;
};

struct Worker {
  control::Hello hello;
  SessionId session;  // 0: lost
  bool drained = false;
  bool leaving = false;  // this process is about to end
  std::optional<Hold> hold;
  absl::Time attach_time, last_seen;
  absl::Duration last_heard;  // steady

  WorkerState state() const {
    if (session == SessionId(0)) return WorkerState::kLost;
    return hold.has_value() ? WorkerState::kBusy : WorkerState::kIdle;
  }
  bool TakesWork() const { return state() == WorkerState::kIdle && !drained && !leaving; }
};

// A worker that is lost, and what it was held for.
struct Loss {
  std::string worker, incarnation;
  SessionId session;
  std::string reason;
  std::optional<Hold> hold;
};

struct MembershipOptions {
  absl::Duration lease = timeouts::kLease;
  absl::Duration forget_after = timeouts::kForgetWorker;
};

// One caller at a time.
class Membership final {
 public:
  // drained: names from the store; they are listed as lost until they attach.
  Membership(MembershipOptions options, const std::set<std::string>& drained);

  struct Attached {
    // The same incarnation came on a new stream before its old one was seen to end. The old one is
    // to be closed.
    std::optional<Loss> replaced;
  };
  // Errors: kInvalidArgument (no name or incarnation), kFailedPrecondition (protocol; names both
  // versions; the GPU is another worker's, and not shared by both), kAborted (another incarnation
  // of the name is alive, or this one was superseded). A session whose hold equals hello.running
  // keeps it; otherwise the new session starts without a hold.
  absl::StatusOr<Attached> Attach(const control::Hello& hello, SessionId session, Moment now);

  // A message came on the session. An unknown session is ignored.
  void Heard(SessionId session, Moment now);
  // The session's stream ended. Empty if it was not the worker's current one.
  std::optional<Loss> Detach(SessionId session, std::string reason);
  // Every lease begins anew: the coordinator did not listen until now.
  void RenewLeases(Moment now);
  // Workers not heard for a lease are lost; the long lost are forgotten.
  std::vector<Loss> Expire(Moment now);

  // kNotFound: no such worker.
  absl::Status SetDrained(const std::string& worker, bool drained);
  // This incarnation gets no new work any more. An unknown session is ignored.
  void SetLeaving(SessionId session);
  void SetHold(const std::string& worker, Hold hold);
  void Release(const std::string& worker);

  const Worker* Find(const std::string& worker) const;
  const Worker* FindSession(SessionId session) const;
  const std::map<std::string, Worker>& workers() const { return workers_; }

 private:
  absl::Status CheckDevice(const control::Hello& hello) const;
  Loss Lose(Worker& worker, std::string reason);

  const MembershipOptions options_;
  std::map<std::string, Worker> workers_;
  std::map<SessionId, std::string> sessions_;
  // Incarnations that were followed by another one, newest last; bounded.
  std::map<std::string, std::deque<std::string>> superseded_;
};

// kFailedPrecondition, with both versions and what to do, unless the worker speaks a version from
// kOldestProtocolVersion to kProtocolVersion (common/base/version.h).
absl::Status CheckProtocol(const control::Hello& hello);

}  // namespace takt::membership
