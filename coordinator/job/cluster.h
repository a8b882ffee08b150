// SPDX-License-Identifier: Apache-2.0
// Holds everything that the coordinator knows (the workers, the jobs and their queue) and every
// rule by which it changes. One thread calls it (coordinator.h), and times come in as arguments. It
// lists what is to be stored, shown and sent in an outbox. The caller stores first, and only then
// shows and sends, so that nothing is visible before it is durable. The one exception is the reason
// why a job that starts still waits.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/control/attachment.h"
#include "common/control/reports.h"
#include "common/profile/profile.h"
#include "coordinator/job/held_jobs.h"
#include "coordinator/job/job_table.h"
#include "coordinator/job/outbox.h"
#include "coordinator/job/request_log.h"
#include "coordinator/job/retention.h"
#include "coordinator/job/session.h"
#include "coordinator/job/worker_table.h"
#include "coordinator/store/store.h"
#include "coordinator/timeouts/timeouts.h"

namespace takt::job {

struct ClusterOptions {
  membership::MembershipOptions membership;
  DecideOptions decide;
  ReplanOptions replan;
  absl::Duration heartbeat = timeouts::kHeartbeat;
  absl::Duration batch_interval = timeouts::kBatchInterval;
  absl::Duration commit_timeout = timeouts::kCommitTimeout;
  // A job that workers hold and the store does not know is abandoned after this time.
  absl::Duration abandon_held_after = absl::InfiniteDuration();
  std::function<std::string(int)> random_bytes;  // so many of them
  RetentionOptions retention;
  placement::Quotas quotas;  // of workers, by the owner of a job
  bool tracks = false;       // there is a tracking server, so jobs may name an experiment
  // Returns what was measured on workers, never null. Any thread may call it.
  std::function<std::shared_ptr<const profile::Profile>()> read_profile =
      [nothing = std::make_shared<const profile::Profile>()] { return nothing; };
};

struct Submission {
  std::string request_id;
  std::string spec;        // takt.v1.JobSpec, serialized
  config::JobSpec parsed;  // the same, validated
  std::string owner = {};
  double predicted_step_seconds = 0;  // 0: it was not planned yet
};

// One thread.
class Cluster final {
 public:
  // store: borrowed, and only read here.
  Cluster(const ClusterOptions& options, store::Snapshot snapshot, store::Store* store, Moment now);
  Cluster(const Cluster&) = delete;
  Cluster& operator=(const Cluster&) = delete;

  // Workers.
  void Attach(const control::Hello& hello, SessionId id, std::shared_ptr<WorkerSession> session,
              Moment now);
  void Heartbeat(SessionId id, const control::Heartbeat& heartbeat, Moment now);
  void Update(SessionId id, const control::JobUpdate& update, Moment now);
  void Detach(SessionId id, const std::string& reason, Moment now);
  // The worker was asked to end. It goes as soon as it is idle.
  void Leave(SessionId id, const std::string& reason, Moment now);
  // Errors: kFailedPrecondition (that incarnation is not attached).
  absl::Status CheckAttached(const std::string& worker, const std::string& incarnation) const;
  void Report(const std::string& worker, const std::string& incarnation,
              const control::RankStepReport& report, const std::shared_ptr<BulkSession>& session);
  void ReportCheckpoint(const std::string& worker, const std::string& incarnation,
                        const control::CheckpointReport& report,
                        const std::shared_ptr<BulkSession>& session);
  void Committed(SessionId id, const control::CheckpointCommitted& answer, Moment now);
  // The worker describes a rank of a job that the store does not know.
  void Described(SessionId id, const control::RankDescription& description, Moment now);
  // The worker refuses this coordinator's commands.
  void Refused(SessionId id, const control::CommandsRefused& refused, Moment now);
  // The line is dropped unless its worker has held a rank of the job.
  void AddLog(const control::LogLine& line);

  // Requests. They are answered after the commit. A request whose id was seen before is answered as
  // before. An empty id counts as new each time.
  void Submit(const Submission& submission, Reply<store::JobRecord> reply, Moment now);
  // Returns the error with which Submit would refuse a spec that is valid by itself.
  absl::Status CheckSubmit(const config::JobSpec& spec) const;
  // Returns nullopt if there is no such job.
  std::optional<std::string> OwnerOf(const std::string& job) const;
  void Cancel(const std::string& request_id, const std::string& name, Reply<store::JobRecord> reply,
              Moment now);
  void Delete(const std::string& request_id, const std::string& name, Reply<bool> reply);
  void Pause(const std::string& request_id, const std::string& name, Reply<store::JobRecord> reply,
             Moment now);
  void Resume(const std::string& request_id, const std::string& name, Reply<store::JobRecord> reply,
              Moment now);
  void SetDrained(const std::string& request_id, const std::string& worker, bool drained,
                  Reply<membership::Worker> reply, Moment now);
  // Takes a held job over from its workers, or tells them to abort it (held_jobs.h).
  void Adopt(const std::string& request_id, const std::string& name, Reply<store::JobRecord> reply,
             Moment now);
  void Abandon(const std::string& request_id, const std::string& name, Reply<bool> reply,
               Moment now);
  std::vector<HeldJobView> ListHeld() const { return held_.List(workers_); }
  std::size_t num_held() const { return held_.size(); }
  std::set<std::string> NamesOfHeld() const;
  // Returns nullopt if no job of that name is held.
  std::optional<std::string> OwnerOfHeld(const std::string& job) const;
  bool IsHeld(const std::string& worker) const { return held_.Holds(worker); }
  const placement::Workers& workers() const { return workers_.workers(); }

  // Takes the result of the effect MakePlan.
  void Planned(const std::string& job_id, Generation generation, absl::StatusOr<plan::Plan> plan,
               Moment now);
  // Takes the result of the effect Replan.
  void Replanned(const std::string& job_id, Generation generation,
                 absl::StatusOr<ReplanOffer> offer, Moment now);

  // While `why` is an error, requests that change something are refused with it, except deletions.
  void SetReadOnly(absl::Status why) { read_only_ = std::move(why); }

  // The coordinator did nothing for `stall`, because it was stopped or swapped out. That workers
  // were silent meanwhile proves nothing, and a worker whose stream ended because it got no answer
  // has return_grace to come back. Call this before any event that came during the stall.
  void ResumeAfterStall(absl::Duration stall, Moment now);
  // Applies what follows from the events so far and from the time. What only time changes is
  // checked at most every timeouts::kTick, because with thousands of jobs and workers Tick is
  // called more often.
  void Tick(Moment now);
  // True while reports or log lines wait for their batch.
  bool HasWaitingBatch() const;
  Outbox TakeOutbox();

 private:
  static constexpr char kGenerationIsOver[] = "this generation of the job is over";

  // cluster.cc
  void HandleLoss(const membership::Loss& loss);
  void Heard(SessionId id, Moment now);
  // Handles the workers that were silent for too long. The jobs for which they are held are asked
  // what their other ranks say for them.
  void ExpireWorkers(Moment now);
  void ForgetEndedJobs(Moment now);

  // cluster_held.cc
  // Returns true if the worker holds the rank for another cluster.
  bool IsForeign(const control::Hello& hello) const;
  // Returns true if the rank was adopted, and the worker has not read that.
  bool MissedAdoption(const control::Hello& hello) const;
  // The worker has attached with a rank that no job of this coordinator gave it.
  void HoldOrAbort(const control::Hello& hello, Moment now);
  void TickHeld(Moment now);
  // Returns the error of a request about a job that does not exist.
  absl::Status NoJobNamed(const std::string& name) const;
  absl::StatusOr<store::JobRecord> TakeOver(const std::string& name, Moment now);
  // Tells the workers of all held generations of the job, or of this one, to abort it.
  absl::Status LetGo(const std::string& name);
  void LetGo(const control::JobKey& key);
  // Returns why the jobs of the queue must not begin yet; empty: they may.
  std::string WhyNothingBegins(Moment now);

  // cluster_queue.cc
  void ServeQueue(Moment now);
  // True if a worker that holds the job's only state is away, or still lets its last rank go.
  bool AwaitsHolders(const Job& job, Moment now) const;
  // Returns the workers that the job blames, as WaitingJob::blamed.
  std::map<std::string, int> BlamedBy(const Job& job, Moment now) const;
  // Adds the running jobs that could use idle workers, after those that wait. Returns whether there
  // are any of both.
  bool AddGrowing(std::vector<placement::WaitingJob>& waiting, std::vector<Job*>& jobs, Moment now);
  placement::Capacity CapacityForQueue(Moment now) const;
  // Returns false if the queue was asked the same question a short time ago.
  bool AsksAnew(std::vector<placement::WaitingJob> waiting, placement::Capacity capacity,
                Moment now);

  // cluster_requests.cc
  using JobChange = absl::Status (Job::*)(Moment now);
  // Answers with the job after `change`, or with its error.
  void ChangeJob(const std::string& method, const std::string& request_id, const std::string& name,
                 const Reply<store::JobRecord>& reply, JobChange change, Moment now);
  // Returns true if the request was answered before. It is answered again then.
  template <class T>
  bool Replayed(const std::string& method, const std::string& request_id, const std::string& job,
                const Reply<T>& reply,
                const std::function<T(const store::RequestRecord&)>& as_before);
  template <class T>
  void ReplyLater(const Reply<T>& reply, absl::StatusOr<T> result);

  const ClusterOptions options_;
  absl::Status read_only_;
  Outbox outbox_;
  RequestLog requests_;
  WorkerTable workers_;
  const std::string cluster_id_;
  HeldJobs held_;
  const JobContext context_;
  JobTable jobs_;
  const absl::Duration started_;    // steady
  std::set<std::string> expected_;  // they held ranks, or a job's only state, when it started
  // Held jobs that were let go, with their clusters. Ranks that come back are told to abort.
  std::set<std::pair<control::JobKey, std::string>> abandoned_;
  // The ranks that were adopted since their workers attached, as far as this coordinator knows, and
  // the clusters that had them.
  std::map<std::string, std::pair<control::JobKey, std::string>> adopted_;  // by worker
  absl::Duration forgot_at_ = -absl::InfiniteDuration();
  absl::Duration looked_at_ = -absl::InfiniteDuration();  // steady
  absl::Duration last_batch_ = -absl::InfiniteDuration();
  // These say what the queue was asked last, without predicted times, and when.
  std::vector<placement::WaitingJob> asked_waiting_;
  placement::Capacity asked_capacity_;
  absl::Duration asked_at_ = -absl::InfiniteDuration();
};

}  // namespace takt::job
