// SPDX-License-Identifier: Apache-2.0
// A worker's process: the real session::RankLifecycle, session::BulkOutbox and
// session::CommandFence, driven as session::Agent and worker_rpc::AttachmentClient drive them, and
// the real committer's actions. A worker lives several lives one after the other.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/control/attachment.h"
#include "common/control/reports.h"
#include "tests/simulation/coordinator_process.h"
#include "tests/simulation/data_plane.h"
#include "tests/simulation/rank_work.h"
#include "tests/simulation/stream.h"
#include "tests/simulation/world.h"
#include "worker/session/rank_lifecycle.h"

namespace takt::simulation {

// One thread.
class WorkerProcess final {
 public:
  // All pointers are borrowed. on_exit: called when the process ends by itself.
  WorkerProcess(World* world, CoordinatorProcess* coordinator, DataPlane* plane, std::string name,
                std::function<void()> on_exit);
  ~WorkerProcess();
  WorkerProcess(const WorkerProcess&) = delete;
  WorkerProcess& operator=(const WorkerProcess&) = delete;

  // Starts a process that has no job. It must be dead.
  void Start();
  // told: the host tells the coordinator and the peers that the process is gone.
  void Kill(bool told);
  bool alive() const { return life_ != nullptr; }
  // It does nothing until then (SIGSTOP).
  void StopUntil(absl::Duration until);
  // Its steps take so many times longer until then.
  void SlowUntil(absl::Duration until, double factor);
  void Leave();
  // Its connections to the coordinator break.
  void BreakStreams();
  Path& path() { return path_; }
  const std::string& name() const { return name_; }

 private:
  struct Life;
  using LifePtr = std::shared_ptr<Life>;

  // Everything that a life does goes through these. Nothing happens once the life is over, and
  // nothing while the process is stopped.
  void Later(const LifePtr& life, absl::Duration delay, std::function<void()> action);
  void Now(const LifePtr& life, const std::function<void()>& action);
  bool UseDisk(const LifePtr& life, const std::function<void()>& action);
  void BeforeDiskCall(const std::weak_ptr<Life>& weak_life);

  // The streams.
  void Dial(const LifePtr& life);
  void Redial(const LifePtr& life, absl::Duration least);
  void ControlEnded(const LifePtr& life, const absl::Status& status);
  void DialBulk(const LifePtr& life);
  void PumpBulk(const LifePtr& life);
  control::Hello HelloOf(const Life& life) const;
  bool Send(const LifePtr& life, const control::WorkerMessage& message);
  void Beat(const LifePtr& life);
  void SendHeartbeat(const LifePtr& life);

  // What worker_rpc::AttachmentClient does with commands, and what the agent does with those that
  // are obeyed.
  void OnCommand(const LifePtr& life, std::int64_t epoch, const control::Command& command);
  void OnWelcome(const LifePtr& life, const control::Welcome& welcome, std::int64_t epoch);
  void OnAdopt(const LifePtr& life, const control::JobKey& key);
  void Obey(const LifePtr& life, const control::Command& command);
  void Describe(const LifePtr& life, bool whole);
  void Acknowledged(const LifePtr& life, const control::ReportsAcknowledged& reports);
  void Apply(const LifePtr& life, const session::Effects& effects);
  void Build(const LifePtr& life, const control::JobKey& key);
  RankHost HostOf(const LifePtr& life);
  void Report(const LifePtr& life, session::Report report);
  void CheckFlushed(const LifePtr& life);
  control::RankStatus StatusOf(const Life& life) const;
  void Exit(const LifePtr& life, const session::EffectExit& exit);

  // What the committer does.
  void PumpCommits(const LifePtr& life);
  void Commit(const LifePtr& life, const control::CommitCheckpoint& request);
  void Retain(const LifePtr& life, const control::CommitCheckpoint& request);

  World& world_;
  CoordinatorProcess& coordinator_;
  DataPlane& plane_;
  const std::string name_;
  const std::function<void()> on_exit_;
  Path path_;
  LifePtr life_;  // null: the process is dead
  int lives_ = 0;
  absl::Duration stopped_until_ = absl::ZeroDuration(), slow_until_ = absl::ZeroDuration();
  double slowness_ = 1;
};

}  // namespace takt::simulation
