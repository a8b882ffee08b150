// SPDX-License-Identifier: Apache-2.0
// Everything the coordinator knows, and every rule by which it changes: workers, jobs, their runs.
// One thread calls it (coordinator.h); times come in as arguments. What it wants done leaves
// through the Outbox: first to be stored, then to be shown and sent. So nothing is visible that is
// not durable.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/control/attachment.h"
#include "common/control/reports.h"
#include "coordinator/job/decide.h"
#include "coordinator/job/launch.h"
#include "coordinator/job/outbox.h"
#include "coordinator/job/rendezvous.h"
#include "coordinator/job/session.h"
#include "coordinator/job/step_collector.h"
#include "coordinator/membership/membership.h"
#include "coordinator/placement/placement.h"
#include "coordinator/store/store.h"
#include "coordinator/timeouts.h"

namespace takt::job {

using membership::SessionId;

struct PlanRequest {
  std::string job_id;
  Generation generation;
  config::JobSpec spec;
  plan::PlanOptions options;
};

struct ClusterOptions {
  membership::MembershipOptions membership;
  DecideOptions decide;
  absl::Duration heartbeat = coordinator::kHeartbeat;
  absl::Duration batch_interval = coordinator::kBatchInterval;
  absl::Duration commit_timeout = coordinator::kCommitTimeout;
  // So many random bytes.
  std::function<std::string(int)> random_bytes;
  // Starts planning; the result comes back through Cluster::Planned.
  std::function<void(PlanRequest)> plan;
  // A generation is handed out; a job is deleted, by name. Called after the commit, before any rank
  // hears of it; may be empty.
  std::function<void(const Launch&)> on_launch;
  std::function<void(const std::string&)> on_delete;
};

struct Submission {
  std::string request_id;
  std::string spec;        // takt.v1.JobSpec, serialized
  config::JobSpec parsed;  // the same, validated
  std::string owner = {};
};

template <class T>
using Reply = std::function<void(absl::StatusOr<T>)>;

// One thread.
class Cluster final {
 public:
  // store, rendezvous: borrowed. The store is only read here.
  Cluster(ClusterOptions options, store::Snapshot snapshot, store::Store* store,
          Rendezvous* rendezvous, Moment now);

  // Workers.
  void Attach(const control::Hello& hello, SessionId id, std::shared_ptr<WorkerSession> session,
              Moment now);
  void Heartbeat(SessionId id, const control::Heartbeat& heartbeat, Moment now);
  void Update(SessionId id, const control::JobUpdate& update, Moment now);
  void Detach(SessionId id, const std::string& reason, Moment now);
  // It was asked to end and goes as soon as it is idle.
  void Leave(SessionId id, const std::string& reason, Moment now);
  // kFailedPrecondition unless that incarnation is attached.
  absl::Status CheckAttached(const std::string& worker, const std::string& incarnation) const;
  void Report(const std::string& worker, const std::string& incarnation,
              const control::RankStepReport& report, const std::shared_ptr<BulkSession>& session);
  void ReportCheckpoint(const std::string& worker, const std::string& incarnation,
                        const control::CheckpointReport& report,
                        const std::shared_ptr<BulkSession>& session);
  void Committed(SessionId id, const control::CheckpointCommitted& answer, Moment now);
  // Dropped unless its worker has held a rank of the job.
  void AddLog(const control::LogLine& line);

  // Requests. Replies come after the commit. A request_id seen before answers as before; an empty
  // one is never seen before.
  void Submit(const Submission& submission, Reply<store::JobRecord> reply, Moment now);
  // What Submit would refuse of a spec that is valid by itself.
  absl::Status CheckSubmit(const config::JobSpec& spec) const;
  // nullopt: no such job.
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
  const std::map<std::string, membership::Worker>& workers() const { return members_.workers(); }

  void Planned(const std::string& job_id, Generation generation, absl::StatusOr<plan::Plan> plan,
               Moment now);

  // We did nothing for `stall` (stopped, swapped out), which is over now: workers' silence of that
  // time proves nothing, and one whose stream ends because we did not answer comes back. To be
  // called before any event that came during the stall.
  void ResumeAfterStall(absl::Duration stall, Moment now);
  // Applies what follows from all that happened and from the time.
  void Tick(Moment now);
  // Reports or log lines wait for their batch.
  bool HasWaitingBatch() const;
  Outbox TakeOutbox();

 private:
  // The oldest open checkpoint of a job, complete, on its way to being visible.
  struct Commit {
    absl::Duration since;
    SessionId asked;  // 0: nobody yet
    std::string manifest;
  };
  struct JobEntry {
    store::JobRecord record;
    config::JobSpec spec;
    std::vector<std::string> reserved;  // PLANNING: workers held for it
    std::set<std::string> hands;        // workers that have held its ranks: may log for it
    std::optional<JobRun> run;          // STARTING, RUNNING, RECOVERING
    std::optional<StepCollector> steps;
    std::map<Rank, std::shared_ptr<BulkSession>> bulk;
    bool acknowledge = false;  // reports came since the last acknowledgement
    std::optional<Commit> commit;
  };

  // cluster.cc
  void Restore(JobEntry& job, Moment now);
  JobEntry* FindJob(const std::string& name);
  const JobEntry* FindJob(const std::string& name) const;
  JobEntry* FindRunning(const control::JobKey& key);
  void SetState(JobEntry& job, store::JobState state, std::string reason, Moment now);
  void SetReason(JobEntry& job, std::string reason);
  void AddNotice(JobEntry& job, std::string notice);
  JobRun MakeRun(const JobEntry& job, Moment now) const;
  void Touch(const JobEntry& job) { dirty_.insert(job.record.id); }
  void CollectSteps(JobEntry& job, bool rest, Moment now);
  void SendTo(const std::string& worker, control::Command command);

  // cluster_workers.cc
  void HandleLoss(const membership::Loss& loss, Moment now);
  void Reattach(const control::Hello& hello);
  RankRun* FindRank(const control::JobKey& key, Rank rank, const membership::Worker& worker);

  // cluster_jobs.cc
  void Advance(JobEntry& job, Moment now);
  void Apply(JobEntry& job, const Decision& decision, Moment now);
  void StartRun(JobEntry& job);
  void StopRun(JobEntry& job, store::JobStop stop, Moment now);
  void CountRecovery(JobEntry& job, const std::string& reason, Moment now);
  void EndRun(JobEntry& job, const Decision& decision, Moment now);
  void ServeQueue(Moment now);
  config::DeviceKind DeviceOf(const JobEntry& job) const;
  void BeginPlanning(JobEntry& job, const std::vector<std::string>& workers, Moment now);
  void Launch(JobEntry& job, plan::Plan plan, Moment now);
  void ReleaseReserved(JobEntry& job);

  // cluster_checkpoints.cc
  void AdvanceCheckpoints(JobEntry& job, Moment now);
  // False: it has failed.
  bool AdvanceCommit(JobEntry& job, Moment now);
  // An empty manifest: it has failed.
  void SendCommit(const JobEntry& job, StepId step, const std::string& manifest);
  void SettleCheckpoint(JobEntry& job, const std::string& error, Moment now);
  const membership::Worker* FindCommitter(const JobEntry& job) const;

  // cluster_halt.cc
  absl::Status PauseJob(JobEntry& job, Moment now);
  absl::Status ResumeJob(JobEntry& job, Moment now);
  void RequestHalt(JobEntry& job, store::JobHalt halt, Moment now);
  // So that `worker` is free, if its job has checkpoints.
  void HaltJobOf(const membership::Worker& worker, const std::string& reason, Moment now);

  // cluster_requests.cc
  // True: the request was answered before, and now again.
  template <class T>
  bool Replayed(const std::string& method, const std::string& request_id,
                const std::string& job_name, const Reply<T>& reply,
                const std::function<T(const store::RequestRecord&)>& answer);
  void Remember(const std::string& method, const std::string& request_id,
                std::optional<store::JobRecord> job);
  // Answers with the job after `change`, or with its error.
  void ChangeJob(const std::string& method, const std::string& request_id, const std::string& name,
                 const Reply<store::JobRecord>& reply,
                 const std::function<absl::Status(JobEntry&)>& change);
  absl::Status CancelJob(JobEntry& job, Moment now);
  template <class T>
  void ReplyLater(const Reply<T>& reply, absl::StatusOr<T> result);

  const ClusterOptions options_;
  store::Store* const store_;
  Rendezvous* const rendezvous_;
  membership::Membership members_;
  std::map<SessionId, std::shared_ptr<WorkerSession>> sessions_;
  std::map<std::int64_t, JobEntry> jobs_;  // by number: the order of the queue
  std::int64_t last_number_ = 0;
  std::map<std::string, Generation> generations_;  // of deleted jobs, by name
  // After a stall: until then a stream that ends is not the death of its worker.
  absl::Duration streams_return_until_ = -absl::InfiniteDuration();
  absl::Duration last_batch_ = -absl::InfiniteDuration();
  std::vector<store::LogRecord> waiting_logs_;
  std::set<std::string> dirty_;  // job ids to store and to publish
  std::set<std::string> grown_;  // job ids to publish only: new steps
  Outbox outbox_;
};

}  // namespace takt::job
