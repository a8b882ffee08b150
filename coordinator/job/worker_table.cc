// SPDX-License-Identifier: Apache-2.0
#include "coordinator/job/worker_table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/version.h"

namespace takt::job {
namespace {

using membership::kNoRank;
using membership::Loss;
using membership::Worker;

}  // namespace

absl::StatusOr<std::optional<Loss>> WorkerTable::Attach(const control::Hello& hello, SessionId id,
                                                        std::shared_ptr<WorkerSession> session,
                                                        Moment now) {
  absl::StatusOr<membership::Membership::Attached> attached = members_.Attach(hello, id, now);
  if (!attached.ok()) {
    Log(LogLevel::kWarning, "worker refused",
        {{"worker", hello.worker},
         {"incarnation", hello.incarnation},
         {"reason", attached.status().ToString()}});
    outbox_.effects.push_back(CloseSession{std::move(session), attached.status()});
    return attached.status();
  }
  Close(attached->replaced, "the worker came back on another one");
  if (attached->loss) Settle(*attached->loss);
  sessions_[id] = std::move(session);
  ShowBlame(hello.worker, now);
  Send(hello.worker, control::Welcome{.protocol_version = kProtocolVersion,
                                      .program_version = kTaktVersion,
                                      .heartbeat = heartbeat_,
                                      .lease = options_.lease,
                                      .cluster_id = cluster_id_});
  Log(LogLevel::kInfo, "worker attached",
      {{"worker", hello.worker},
       {"incarnation", hello.incarnation},
       {"host", hello.host},
       {"running", hello.running ? hello.running->key.job : ""}});
  return std::move(attached->loss);
}

std::optional<Loss> WorkerTable::Detach(SessionId id, const std::string& reason, Moment now) {
  std::optional<Loss> loss = members_.Detach(id, reason, now);
  if (loss) Settle(*loss);
  return loss;
}

std::vector<Loss> WorkerTable::Expire(Moment now, const membership::Membership::Vouch& vouch) {
  std::vector<Loss> losses = members_.Expire(now, vouch);
  for (const Loss& loss : losses) Settle(loss);
  for (const std::string& worker : quarantine_.Tick(wait_clock_.Of(now))) ShowBlame(worker, now);
  return losses;
}

void WorkerTable::Blame(const std::string& worker, const std::string& job, const std::string& what,
                        Moment now) {
  const Worker* const found = members_.Find(worker);
  if (found != nullptr && found->leaving) return;
  const auto known = std::ranges::count_if(workers(), [](const auto& entry) {
    return entry.second.state() != membership::WorkerState::kLost;
  });
  quarantine_.Blame(worker, {.time = wait_clock_.Of(now), .job = job, .what = what},
                    static_cast<int>(known));
  ShowBlame(worker, now);
}

void WorkerTable::Forgive(const std::string& job, const std::string& what, Moment now) {
  for (const std::string& worker : quarantine_.Forgive(job, what, wait_clock_.Of(now)))
    ShowBlame(worker, now);
}

void WorkerTable::Trust(const std::string& worker, Moment now) {
  quarantine_.Trust(worker);
  ShowBlame(worker, now);
}

void WorkerTable::ShowBlame(const std::string& worker, Moment now) {
  membership::Blame blame = quarantine_.Of(worker, wait_clock_.Of(now));
  blame.until = wait_clock_.Shown(blame.until, now);
  members_.SetBlame(worker, std::move(blame));
  for (auto& [name, record] : quarantine_.TakeChanges())
    outbox_.changes.workers[name] = std::move(record);
}

void WorkerTable::Settle(const Loss& loss) {
  const Worker* const worker = members_.Find(loss.worker);
  const bool as_asked = worker != nullptr && worker->leaving;
  if (!loss.away && !as_asked) ++outbox_.workers_lost;
  Log(LogLevel::kWarning, loss.away ? "worker away" : "worker lost",
      {{"worker", loss.worker},
       {"incarnation", loss.incarnation},
       {"reason", loss.reason},
       {"job", loss.hold ? loss.hold->key.job : ""}});
  Close(loss.session, loss.reason);
}

void WorkerTable::Close(SessionId id, const std::string& reason) {
  Reject(id, absl::UnavailableError(absl::StrCat("the coordinator gave this stream up: ", reason)));
}

void WorkerTable::Reject(SessionId id, const absl::Status& why) {
  const auto session = sessions_.find(id);
  if (session == sessions_.end()) return;
  outbox_.effects.push_back(CloseSession{session->second, why});
  sessions_.erase(session);
}

void WorkerTable::Send(const std::string& worker, control::Command command) {
  const Worker* const found = members_.Find(worker);
  if (found == nullptr) return;
  const auto session = sessions_.find(found->session);
  if (session == sessions_.end()) return;
  outbox_.effects.push_back(SendCommand{session->second, std::move(command)});
}

void WorkerTable::Reserve(const std::vector<std::string>& workers, const control::JobKey& key) {
  for (const std::string& worker : workers) members_.SetHold(worker, {key, kNoRank});
}

placement::Gang WorkerTable::Reserved(const control::JobKey& key, config::DeviceKind device) const {
  placement::Gang gang;
  for (const auto& [name, worker] : workers()) {
    const bool held = worker.hold == membership::Hold{key, kNoRank};
    if (held && worker.attached() && !worker.retired()) gang.push_back(&worker);
  }
  placement::SortByRank(gang, device);
  return gang;
}

void WorkerTable::ReleaseReserved(const control::JobKey& key) {
  for (const auto& [name, worker] : workers()) {
    if (worker.hold == membership::Hold{key, kNoRank}) members_.Release(name, key);
  }
}

const Worker* WorkerTable::FindAttached(const std::string& worker,
                                        const std::string& incarnation) const {
  const Worker* const found = members_.Find(worker);
  const bool attached =
      found != nullptr && found->attached() && found->hello.incarnation == incarnation;
  return attached ? found : nullptr;
}

}  // namespace takt::job
