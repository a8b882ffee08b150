// SPDX-License-Identifier: Apache-2.0
// This file has what a Cluster does with ranks that it did not give: those of jobs that the store
// does not know, and those of another cluster.
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/counted.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "coordinator/job/cluster.h"
#include "coordinator/job/received_text.h"

namespace takt::job {

using membership::Worker;
using store::JobRecord;

namespace {

constexpr char kAbandoned[] = "the job was abandoned, since this coordinator does not know it";

absl::Status NoSuchHeldJob(const std::string& name) {
  return absl::NotFoundError(absl::StrCat("no worker holds a job named ", name,
                                          " that this coordinator does not know; `takt jobs` "
                                          "lists those that are held"));
}

}  // namespace

bool Cluster::IsForeign(const control::Hello& hello) const {
  return hello.running && !hello.running->cluster_id.empty() &&
         hello.running->cluster_id != cluster_id_ && !MissedAdoption(hello);
}

bool Cluster::MissedAdoption(const control::Hello& hello) const {
  const auto adopted = adopted_.find(hello.worker);
  return adopted != adopted_.end() && hello.running &&
         adopted->second == std::pair(hello.running->key, hello.running->cluster_id);
}

absl::Status Cluster::CheckSubmit(const config::JobSpec& spec) const {
  if (held_.Find(spec.name) == nullptr) return jobs_.CheckNew(spec);
  return absl::AlreadyExistsError(
      absl::StrCat("workers hold a job named ", spec.name,
                   " that this coordinator does not know; choose another name, or adopt or abandon "
                   "that one"));
}

void Cluster::HoldOrAbort(const control::Hello& hello, Moment now) {
  const control::RunningJob& running = *hello.running;
  // The worker is held until it has let go, so that nothing else is given to it.
  workers_.Bind(hello.worker, running.key, running.rank);
  if (abandoned_.contains({running.key, running.cluster_id})) {
    workers_.Send(hello.worker, control::Adopt{running.key});
    workers_.Send(hello.worker, control::Abort{running.key, kAbandoned});
    return;
  }
  if (!IsForeign(hello) && jobs_.IsOver(running.key)) {
    workers_.Send(hello.worker, control::Abort{running.key, kGenerationIsOver});
    return;
  }
  if (!held_.Claim(hello, now)) return;
  Log(LogLevel::kError,
      "workers hold a job that this state does not know; it trains on; see takt adopt, takt "
      "abandon",
      {{"job", running.key.job},
       {"generation", absl::StrCat(running.key.generation.value())},
       {"cluster_of_job", running.cluster_id},
       {"cluster", cluster_id_}});
}

void Cluster::Described(SessionId id, const control::RankDescription& description, Moment now) {
  Heard(id, now);
  const Worker* const worker = workers_.members().FindSession(id);
  if (worker != nullptr) held_.Describe(worker->hello.worker, description);
}

void Cluster::Refused(SessionId id, const control::CommandsRefused& refused, Moment now) {
  Heard(id, now);
  const Worker* const worker = workers_.members().FindSession(id);
  if (worker == nullptr) return;
  // A rank of another cluster that is not held was told that it belongs to this one. The worker
  // refused the welcome before it read that.
  const bool obeys_by_now = refused.cause == control::RefusalCause::kOtherCluster &&
                            worker->hello.running && !held_.Holds(worker->hello.worker);
  if (obeys_by_now) return;
  const std::string reason = Bounded(refused.reason);
  Log(LogLevel::kError, "a worker refuses the commands of this coordinator",
      {{"worker", worker->hello.worker}, {"reason", reason}});
  workers_.members().SetRefuses(worker->hello.worker, reason);
  // It is free to dial the later coordinator.
  if (refused.cause == control::RefusalCause::kLaterEpoch)
    workers_.Reject(id, absl::FailedPreconditionError(reason));
}

void Cluster::TickHeld(Moment now) {
  for (auto& [worker, question] : held_.TakeQuestions(now)) workers_.Send(worker, question);
  std::vector<control::JobKey> over;
  for (const auto& [key, job] : held_) {
    if (now.steady - job.since >= options_.abandon_held_after) over.push_back(key);
  }
  for (const control::JobKey& key : over) LetGo(key);
}

std::optional<std::string> Cluster::OwnerOfHeld(const std::string& job) const {
  const HeldJob* const held = held_.Find(job);
  return held != nullptr ? std::optional(HeldJobs::OwnerOf(*held)) : std::nullopt;
}

std::set<std::string> Cluster::NamesOfHeld() const {
  std::set<std::string> names;
  for (const auto& [key, job] : held_) names.insert(key.job);
  return names;
}

absl::Status Cluster::NoJobNamed(const std::string& name) const {
  return NoSuchJob(name, held_.Find(name) != nullptr);
}

absl::StatusOr<JobRecord> Cluster::TakeOver(const std::string& name, Moment now) {
  const HeldJob* const held = held_.Find(name);
  if (held == nullptr) return NoSuchHeldJob(name);
  if (const std::string why = held_.WhyNotAdoptable(*held, workers_); !why.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("job ", name, " cannot be adopted now: ", why, "; it trains on"));
  }
  Adoption adoption = AdoptionOf(*held, context_.epoch, now);
  RETURN_IF_ERROR(jobs_.CheckTakeOver(adoption.record));
  const control::JobKey key = held->key;
  for (const auto& [worker, rank] : held->ranks) {
    workers_.members().SetRefuses(worker, "");
    workers_.Send(worker, control::Adopt{key});
    adopted_[worker] = {key, held->cluster_id};
  }
  held_.Remove(key);
  return jobs_.TakeOver(std::move(adoption), now).record();
}

absl::Status Cluster::LetGo(const std::string& name) {
  std::vector<control::JobKey> keys;
  for (const auto& [key, job] : held_) {
    if (key.job == name) keys.push_back(key);
  }
  if (keys.empty()) return NoSuchHeldJob(name);
  for (const control::JobKey& key : keys) LetGo(key);
  return absl::OkStatus();
}

void Cluster::LetGo(const control::JobKey& key) {
  const HeldJob& job = held_.at(key);
  Log(LogLevel::kWarning, "a held job is abandoned",
      {{"job", key.job}, {"generation", absl::StrCat(key.generation.value())}});
  // The worker may come back as one of this cluster, if it read the Adopt but not the Abort.
  for (const std::string& cluster : {job.cluster_id, cluster_id_})
    abandoned_.insert({key, cluster});
  for (const auto& [worker, rank] : job.ranks) {
    workers_.members().SetRefuses(worker, "");
    // It obeys only the coordinator that its rank belongs to.
    workers_.Send(worker, control::Adopt{key});
    workers_.Send(worker, control::Abort{key, kAbandoned});
  }
  held_.Remove(key);
}

std::string Cluster::WhyNothingBegins(Moment now) {
  if (now.steady - started_ >= options_.membership.return_grace) expected_.clear();
  std::erase_if(expected_, [&](const std::string& name) {
    const Worker* const worker = workers_.members().Find(name);
    return worker != nullptr && worker->attached();
  });
  if (expected_.empty()) return "";
  return absl::StrCat("the coordinator was started a moment ago; waiting for ",
                      Counted(std::ssize(expected_), "worker"),
                      " that held ranks or the only state of a job");
}

}  // namespace takt::job
