// SPDX-License-Identifier: Apache-2.0
// Holds the workers with their control streams, and says for which job each of them is held.
//
// A worker is held by at most one generation of a job:
//   Reserve   Its gang is granted, and it is held without a rank while the plan is made. Or a job
//             will grow by it, and it is held while the job's ranks halt.
//   Bind      The plan is there, or the worker came back with a rank that it still runs. It is
//             held with that rank.
// A worker that is away keeps its hold, because its job keeps training. It is released when it is
// lost, and by
//   ReleaseReserved   The plan does not need it, has failed or is not wanted any more.
//   Release           The end of its rank is acknowledged: at the end of the run, or later if the
//                     worker reports its end only then.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/control/attachment.h"
#include "coordinator/job/outbox.h"
#include "coordinator/job/quarantine.h"
#include "coordinator/job/session.h"
#include "coordinator/membership/membership.h"
#include "coordinator/placement/placement.h"
#include "coordinator/timeouts/timeouts.h"

namespace takt::job {

using membership::SessionId;

// One thread.
class WorkerTable final {
 public:
  // heartbeat: how often a worker is told to send one. outbox: borrowed; takes what is sent and
  // stored. records and cluster_id: from the store. begin: now.
  WorkerTable(const membership::MembershipOptions& options, const std::set<std::string>& drained,
              absl::Duration heartbeat, Outbox* outbox, Quarantine::Records records = {},
              std::string cluster_id = {}, Moment begin = {})
      : options_(options),
        heartbeat_(heartbeat),
        cluster_id_(std::move(cluster_id)),
        members_(options, drained),
        wait_clock_(begin),
        quarantine_(std::move(records)),
        outbox_(*outbox) {}

  // This incarnation held a rank of `key` when the coordinator ended. It is away.
  membership::Loss Expect(const control::BoundRank& bound, const control::JobKey& key, Moment now) {
    return members_.Expect(bound.worker, bound.incarnation, {key, bound.rank}, now);
  }
  // Welcomes the worker, or closes the session with the error that is returned: as
  // Membership::Attach, from which the loss is.
  absl::StatusOr<std::optional<membership::Loss>> Attach(const control::Hello& hello, SessionId id,
                                                         std::shared_ptr<WorkerSession> session,
                                                         Moment now);
  // The session's stream ended. Returns nullopt if it was not its worker's current session.
  std::optional<membership::Loss> Detach(SessionId id, const std::string& reason, Moment now);
  // Returns the workers that are lost, or away from now on (Membership::Expire).
  std::vector<membership::Loss> Expire(Moment now, const membership::Membership::Vouch& vouch);

  // Blames the worker for a fault of the job. Nothing happens if the worker is about to end.
  void Blame(const std::string& worker, const std::string& job, const std::string& what,
             Moment now);
  // The job's error with this text was its own: takes back what workers were blamed for it.
  void Forgive(const std::string& job, const std::string& what, Moment now);
  // Forgets what is held against the worker.
  void Trust(const std::string& worker, Moment now);
  const Quarantine& quarantine() const { return quarantine_; }

  // Ends the worker's stream with this error.
  void Reject(SessionId id, const absl::Status& why);
  // Nothing happens unless the worker is attached.
  void Send(const std::string& worker, control::Command command);

  void Reserve(const std::vector<std::string>& workers, const control::JobKey& key);
  // Returns the workers that are held for `key` without a rank and may still be given one, in the
  // order of placement::SortByRank.
  placement::Gang Reserved(const control::JobKey& key, config::DeviceKind device) const;
  void ReleaseReserved(const control::JobKey& key);
  void Bind(const std::string& worker, const control::JobKey& key, Rank rank) {
    members_.SetHold(worker, {key, rank});
  }
  // Ends the worker's hold if it is held for `key`. Returns whether it was.
  bool Release(const std::string& worker, const control::JobKey& key) {
    return members_.Release(worker, key);
  }

  // Returns the worker if this incarnation of it is attached, otherwise null.
  const membership::Worker* FindAttached(const std::string& worker,
                                         const std::string& incarnation) const;
  const placement::Workers& workers() const { return members_.workers(); }
  membership::Membership& members() { return members_; }
  const membership::Membership& members() const { return members_; }

 private:
  // Logs and counts the loss, and closes its session.
  void Settle(const membership::Loss& loss);
  void Close(SessionId id, const std::string& reason);
  // Stores and shows what is held against the worker now.
  void ShowBlame(const std::string& worker, Moment now);

  const membership::MembershipOptions options_;
  const absl::Duration heartbeat_;
  const std::string cluster_id_;
  membership::Membership members_;
  const WaitClock wait_clock_;  // of the quarantine
  Quarantine quarantine_;
  std::map<SessionId, std::shared_ptr<WorkerSession>> sessions_;
  Outbox& outbox_;
};

}  // namespace takt::job
