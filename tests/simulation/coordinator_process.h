// SPDX-License-Identifier: Apache-2.0
// The coordinator's process: the real job::Cluster and job::Rendezvous, driven as job::Coordinator
// and coordinator/rpc drive them. It can be killed at each boundary of a commit or an effect.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/control/attachment.h"
#include "common/control/reports.h"
#include "coordinator/job/cluster.h"
#include "coordinator/job/effects.h"
#include "coordinator/job/outbox.h"
#include "coordinator/job/rendezvous.h"
#include "tests/simulation/stream.h"
#include "tests/simulation/world.h"

namespace takt::simulation {

// The worker's end of a bulk stream.
struct BulkEnd {
  std::function<void(const control::ReportsAcknowledged&)> acknowledged;
  // Returns the step of a report that the worker has made; 0: it holds another job now.
  std::function<StepId(const control::JobKey&, std::int64_t sequence)> step_of;
};

// Takes a command and the epoch of the coordinator that sent it.
using OnCommand = std::function<void(std::int64_t epoch, const control::Command&)>;

// One thread.
class CoordinatorProcess final {
 public:
  // world: borrowed. The process calls on_death when it has died by itself, or at a boundary.
  CoordinatorProcess(World* world, std::function<void()> on_death);
  ~CoordinatorProcess();
  CoordinatorProcess(const CoordinatorProcess&) = delete;
  CoordinatorProcess& operator=(const CoordinatorProcess&) = delete;

  // Starts a process on what the store has.
  void Start();
  void Kill();
  bool alive() const { return cluster_ != nullptr; }
  // The process does nothing until then (SIGSTOP).
  void StopUntil(absl::Duration until);
  // The process dies at the boundary that is this many boundaries ahead.
  void KillAtBoundary(std::int64_t ahead) { kill_in_ = ahead; }
  // The next commit fails, and the process ends as it does then.
  void FailNextCommit() { fails_commit_ = true; }
  std::int64_t boundaries() const { return boundaries_; }

  // A worker's hello came on a new stream. The worker's end of the stream calls on_command.
  void Attach(const std::shared_ptr<Stream>& stream, const control::Hello& hello,
              OnCommand on_command);
  void Receive(const Stream& stream, const control::WorkerMessage& message);
  void AttachBulk(const std::shared_ptr<Stream>& stream, const control::BulkHello& hello,
                  BulkEnd end);
  void ReceiveBulk(const Stream& stream, control::BulkMessage message);

  // These are the calls of the rendezvous. It calls `done` now or later.
  void SetKey(const control::JobKey& key, const std::string& name, const std::string& value,
              const std::function<void(absl::Status)>& done);
  void WaitKeys(const control::JobKey& key, const std::vector<std::string>& names,
                const std::function<void(absl::StatusOr<job::Rendezvous::Values>)>& done);

  // Calls `answer` after the commit, unless the process dies before that.
  void Handle(const Request& request, std::function<void(absl::Status)> answer);

 private:
  class Session;
  class Bulk;
  using Event = std::function<void(job::Cluster&, Moment)>;
  struct TimedEvent {
    Event event;
    Moment arrival;
  };
  struct BulkStream {
    std::shared_ptr<Stream> stream;
    std::shared_ptr<Bulk> session;
    control::BulkHello hello;
  };

  job::ClusterOptions Options();
  void Post(Event event);
  void RunAt(absl::Duration when);
  void Round();
  // Each returns false if the process dies there.
  bool Flush(job::Outbox outbox, Moment now);
  bool Store(job::Outbox outbox, Moment now);
  bool CarryOut(const job::Outbox& outbox);
  bool PassBoundary();
  // While the disk is full, as job::Coordinator does.
  void BeginReadOnly(Moment now);
  void EndReadOnly(Moment now);
  void PlanFor(const job::MakePlan& wanted);
  void PlanAgain(const job::Replan& wanted);
  // The event comes when the planner is done.
  void PostLater(Event event);
  void ReportLate(const control::RankStepReport& report, const std::shared_ptr<Bulk>& session,
                  const control::BulkHello& hello);
  job::Reply<store::JobRecord> JobReply(const Request& request,
                                        std::function<void(absl::Status)> answer);

  World& world_;
  const std::function<void()> on_death_;
  Random random_;
  const job::EffectTargets targets_;
  std::unique_ptr<job::Rendezvous> rendezvous_;
  std::unique_ptr<job::Cluster> cluster_;  // null: the process is dead
  std::vector<TimedEvent> events_;
  // The keys are the numbers of the streams.
  std::map<std::int64_t, std::shared_ptr<Stream>> streams_;
  std::map<std::int64_t, BulkStream> bulks_;
  std::int64_t last_stream_ = 0, boundaries_ = 0, kill_in_ = 0, life_ = 0;
  bool fails_commit_ = false;
  std::int64_t epoch_ = 0;
  std::optional<job::Outbox> waiting_;         // while it is read-only
  absl::Status read_only_;                     // the reason why it is, OK if it is not
  absl::Duration read_only_since_, tried_at_;  // steady time
  absl::Duration next_round_, last_round_, stopped_until_ = absl::ZeroDuration();
};

// Returns the job as a client submits it.
config::JobSpec SpecOf(const JobShape& shape, int attempt);

}  // namespace takt::simulation
