// SPDX-License-Identifier: Apache-2.0
// Which workers are alive: workers by name, their incarnations and leases, whether they are
// drained, and what they are held for. Pure logic: times come in as arguments, sessions are
// numbers, and nothing is sent from here.
//
//            Attach                       Hold
//   (lost) ----------> idle  <--------------------> busy
//      ^                 |        Release             |
//      |                 +-------------+--------------+
//      |                               |  Detach (the stream ended), Expire (silent for a lease,
//      |                               v  but excused)
//      +---------------------------- away ---> as before: Heard, or Attach of the same incarnation
//          Expire, Attach of a new incarnation
//
// A worker that is away keeps its hold: its job keeps training without the coordinator. It is lost
// when it does not come back in time, unless its silence is excused:
//   - Other ranks of its job make progress, which they cannot for long without it (Voucher).
//   - Most workers fell silent at the same time. Then the coordinator or its network is at fault.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
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
enum class WorkerState : std::uint8_t { kIdle = 1, kBusy = 2, kLost = 3, kAway = 4 };

// A worker is held for a job without a rank while the plan is made.
inline constexpr Rank kNoRank(-1);

// What a worker is kept for: one rank of one generation of a job.
struct Hold {
  control::JobKey key;
  Rank rank;
  bool operator==(const Hold&) const = default;
};

// Says what is held against a worker.
struct Blame {
  bool quarantined = false;  // it gets no work
  absl::Time until;          // of quarantined
  std::string reasons;       // for people; empty: nothing is
  double score = 0;          // faults, of which each counts half after a day
};

struct Worker {
  control::Hello hello;
  SessionId session;  // 0: it has no stream
  bool drained = false;
  bool leaving = false;  // this process is about to end
  Blame blame;
  std::string refuses;  // why it refuses this coordinator's commands; empty: it obeys
  std::optional<Hold> hold;
  std::optional<std::string> away;  // why nothing is heard of it; nullopt: it is lost, or heard
  absl::Time attach_time, last_seen;
  absl::Duration last_heard;  // steady
  absl::Duration expires;     // steady; when it is lost unless it is heard or excused

  // Its messages come, and commands reach it.
  bool attached() const { return session != SessionId(0) && !away; }
  WorkerState state() const {
    if (away) return WorkerState::kAway;
    if (session == SessionId(0)) return WorkerState::kLost;
    return hold.has_value() ? WorkerState::kBusy : WorkerState::kIdle;
  }
  // It gets no more work when what it holds is done.
  bool retired() const { return drained || leaving || blame.quarantined || !refuses.empty(); }
  bool TakesWork() const { return state() == WorkerState::kIdle && !retired(); }
};

// A worker that has fallen silent or ended, and what it is or was held for.
struct Loss {
  std::string worker, incarnation;
  SessionId session;  // which is over; 0: none
  std::string reason;
  std::optional<Hold> hold;
  bool away = false;  // it may come back and keeps its hold; otherwise it is lost
};

// Says what the other ranks of a job know of a rank whose worker is silent.
struct Voucher {
  // Steady; when one of them last made progress. Infinitely long ago if none says anything.
  absl::Duration progress = -absl::InfiniteDuration();
  absl::Duration step;  // how long a step of the job takes
};

struct MembershipOptions {
  absl::Duration redial = timeouts::kRedial;
  absl::Duration lease = timeouts::kLease;
  absl::Duration return_grace = timeouts::kReturnGrace;
  // While some of many come back that lost their streams together, the others are waited for, at
  // most so much longer than admission takes.
  absl::Duration crowd_grace = timeouts::kReturnGrace;
  absl::Duration cut_off = timeouts::kCutOff;
  absl::Duration longest_step = timeouts::kLongestStep;
  absl::Duration forget_after = timeouts::kForgetWorker;
};

// One caller at a time.
class Membership final {
 public:
  // drained: names from the store; they are listed as lost until they attach.
  Membership(MembershipOptions options, const std::set<std::string>& drained);

  // This incarnation held a rank when the coordinator ended. It is away until it attaches, for
  // return_grace at least.
  Loss Expect(const std::string& worker, const std::string& incarnation, Hold hold, Moment now);

  struct Attached {
    // The stream of the same incarnation that this one replaces, which is to be closed; 0: none.
    SessionId replaced;
    // The incarnation before, which was away; or the same one, if it no longer has the rank that it
    // was held for.
    std::optional<Loss> loss;
  };
  // Errors: kInvalidArgument (no name or incarnation), kFailedPrecondition (protocol; names both
  // versions; the GPU is another worker's, and not shared by both), kAborted (another incarnation
  // of the name is alive, or this one was superseded). The same incarnation keeps its hold if
  // hello.running confirms it or the hold has no rank yet.
  absl::StatusOr<Attached> Attach(const control::Hello& hello, SessionId session, Moment now);

  // A message came on the session. Returns true if the worker was away until now. An unknown
  // session is ignored.
  bool Heard(SessionId session, Moment now);
  // The session's stream ended: the worker is away, or lost if it was about to end. Empty if it was
  // not the worker's current one.
  std::optional<Loss> Detach(SessionId session, std::string reason, Moment now);
  // The coordinator did not listen until now: no worker is lost before `patience`, or a lease, has
  // passed.
  void RenewLeases(Moment now, absl::Duration patience);
  // Workers that were silent for too long are lost, or away if they are excused. Each is returned
  // once as away and once as lost. The long lost are forgotten.
  // vouch: called for each silent worker.
  using Vouch = std::function<Voucher(const Worker&)>;
  std::vector<Loss> Expire(Moment now, const Vouch& vouch);

  // kNotFound: no such worker.
  absl::Status SetDrained(const std::string& worker, bool drained);
  // This incarnation gets no new work any more. An unknown session is ignored.
  void SetLeaving(SessionId session);
  // Nothing happens if no such worker is known. The setting lasts until the worker attaches again.
  void SetRefuses(const std::string& worker, std::string why);
  // Nothing happens if no such worker is known.
  void SetBlame(const std::string& worker, Blame blame);
  void SetHold(const std::string& worker, Hold hold);
  // Ends what the worker is held for if it is held for `key`. Returns whether it was.
  bool Release(const std::string& worker, const control::JobKey& key);

  const Worker* Find(const std::string& worker) const;
  const Worker* FindSession(SessionId session) const;
  const std::map<std::string, Worker>& workers() const { return workers_; }

 private:
  absl::Status CheckDevice(const control::Hello& hello) const;
  // Drops the worker's device from workers_of_gpu_.
  void ForgetDevice(const Worker& worker);
  bool IsVouchedFor(const Worker& worker, const Voucher& voucher, Moment now) const;
  // True while most workers are silent, so that none of them is judged.
  bool IsCutOff(Moment now);
  Loss Lose(Worker& worker, std::string reason);
  static Loss SetAway(Worker& worker, std::string reason);

  const MembershipOptions options_;
  std::map<std::string, Worker> workers_;
  std::map<SessionId, std::string> sessions_;
  std::map<std::string, std::set<std::string>> workers_of_gpu_;  // by uuid
  // Incarnations that were followed by another one, newest last; bounded.
  std::map<std::string, std::deque<std::string>> superseded_;
  // Steady; no worker whose stream ends is lost before.
  absl::Duration patient_until_ = -absl::InfiniteDuration();
  // Steady; when the first of those that are away lost its stream, and, once they are many, until
  // when they are waited for at most.
  absl::Duration crowd_since_, crowd_until_ = -absl::InfiniteDuration();
  int num_lost_ = 0;  // as of the last Expire
  // Steady; since when most workers are silent while some are heard.
  std::optional<absl::Duration> cut_off_since_;
};

// kFailedPrecondition, with both versions and what to do, unless the worker speaks a version from
// kOldestProtocolVersion to kProtocolVersion (common/base/version.h).
absl::Status CheckProtocol(const control::Hello& hello);

}  // namespace takt::membership
