// SPDX-License-Identifier: Apache-2.0
// Everything that the coordinator knows, and every rule by which it changes: the workers, the jobs
// and their queue. One thread calls it (coordinator.h); times come in as arguments. What it wants
// done leaves through the outbox: first to be stored, then to be shown and sent. So nothing is
// visible that is not durable.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/control/attachment.h"
#include "common/control/reports.h"
#include "coordinator/job/job_table.h"
#include "coordinator/job/outbox.h"
#include "coordinator/job/request_log.h"
#include "coordinator/job/session.h"
#include "coordinator/job/worker_table.h"
#include "coordinator/store/store.h"
#include "coordinator/timeouts/timeouts.h"

namespace takt::job {

struct ClusterOptions {
  membership::MembershipOptions membership;
  DecideOptions decide;
  absl::Duration heartbeat = timeouts::kHeartbeat;
  absl::Duration batch_interval = timeouts::kBatchInterval;
  absl::Duration commit_timeout = timeouts::kCommitTimeout;
  std::function<std::string(int)> random_bytes;  // so many of them
};

struct Submission {
  std::string request_id;
  std::string spec;        // takt.v1.JobSpec, serialized
  config::JobSpec parsed;  // the same, validated
  std::string owner = {};
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
  absl::Status CheckSubmit(const config::JobSpec& spec) const { return jobs_.CheckNew(spec); }
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
  const placement::Workers& workers() const { return workers_.workers(); }

  // The result of the effect MakePlan.
  void Planned(const std::string& job_id, Generation generation, absl::StatusOr<plan::Plan> plan,
               Moment now);

  // The coordinator did nothing for `stall` (stopped, swapped out), which is over now: workers'
  // silence of that time proves nothing, and a worker whose stream ends because it got no answer
  // comes back. To be called before any event that came during the stall.
  void ResumeAfterStall(absl::Duration stall, Moment now);
  // Applies what follows from all that happened and from the time.
  void Tick(Moment now);
  // Reports or log lines wait for their batch.
  bool HasWaitingBatch() const;
  Outbox TakeOutbox();

 private:
  // cluster.cc
  void HandleLoss(const membership::Loss& loss, Moment now);
  void ServeQueue(Moment now);

  // cluster_requests.cc
  using JobChange = absl::Status (Job::*)(Moment now);
  // Answers with the job after `change`, or with its error.
  void ChangeJob(const std::string& method, const std::string& request_id, const std::string& name,
                 const Reply<store::JobRecord>& reply, JobChange change, Moment now);
  // True: the request was answered before, and now again.
  template <class T>
  bool Replayed(const std::string& method, const std::string& request_id, const std::string& job,
                const Reply<T>& reply,
                const std::function<T(const store::RequestRecord&)>& as_before);
  template <class T>
  void ReplyLater(const Reply<T>& reply, absl::StatusOr<T> result);

  const ClusterOptions options_;
  Outbox outbox_;
  RequestLog requests_;
  WorkerTable workers_;
  const JobContext context_;
  JobTable jobs_;
  // After a stall: until then a stream that ends is not the death of its worker.
  absl::Duration streams_return_until_ = -absl::InfiniteDuration();
  absl::Duration last_batch_ = -absl::InfiniteDuration();
};

}  // namespace takt::job
