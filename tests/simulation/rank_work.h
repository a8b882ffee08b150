// SPDX-License-Identifier: Apache-2.0
// One rank's work on a worker, in place of session::JobThread and the pipeline runner. It opens the
// checkpoints with the worker's own code, meets the other ranks through the real rendezvous, does
// steps when all ranks do, and writes its part of checkpoints.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/checkpoint/manifest.h"
#include "common/control/assignment.h"
#include "common/control/attachment.h"
#include "common/control/rank_status.h"
#include "common/control/reports.h"
#include "tests/simulation/coordinator_process.h"
#include "tests/simulation/data_plane.h"
#include "tests/simulation/kept_copies.h"
#include "tests/simulation/rank_copies.h"
#include "tests/simulation/world.h"
#include "worker/checkpoint/file_system.h"
#include "worker/session/copy_choice.h"
#include "worker/session/rank_runner.h"

namespace takt::simulation {

// What a rank's work needs of the process that it is part of.
struct RankHost {
  std::string worker;
  const Path* path = nullptr;  // to the coordinator
  std::shared_ptr<worker_checkpoint::FileSystem> files;
  KeptCopies* kept = nullptr;  // outlives the rank
  // Calls `action` after a delay, unless the process is dead by then. It waits while the process is
  // stopped.
  std::function<void(absl::Duration delay, std::function<void()> action)> later;
  // Calls `action`, which uses the disk. Returns false if the process was killed meanwhile.
  std::function<bool(const std::function<void()>& action)> use_disk;
  // How many times longer than usual steps take now.
  std::function<double()> slowness;

  // The events of session::JobThread.
  std::function<void(absl::StatusOr<control::Resumed>)> built;
  std::function<void(session::Report)> report;
  std::function<void(absl::StatusOr<session::RunEnd>)> run_ended;
  std::function<void()> gone;
};

// One thread. Kept alive by what it waits for.
class RankWork final : public DataPlane::Member, public std::enable_shared_from_this<RankWork> {
 public:
  // All pointers are borrowed.
  RankWork(World* world, CoordinatorProcess* coordinator, DataPlane* plane, RankHost host);

  // Begins to prepare, as the constructor of JobThread does.
  void Begin(const std::function<absl::StatusOr<control::Assignment>()>& decode);
  void Run();
  void Halt() { halting_ = true; }
  void Stop(const absl::Status& reason);
  void Release();
  // The process is dead. tells_peers: the connections to them break.
  void Die(bool tells_peers);
  control::RankStatus Status() const;

  // DataPlane::Member
  control::JobKey key() const override { return assignment_.key; }
  Rank rank() const override { return assignment_.rank; }
  int num_ranks() const override { return assignment_.mesh.size(); }
  bool halting() const override { return halting_; }
  StepId last_step() const override { return last_step_; }
  void BeginStep(StepId step, std::function<void()> exchanges) override;
  void CompleteStep(StepId step, std::function<void()> done) override;
  void EndRun(session::RunEnd end) override;
  void LosePeer(Rank peer) override;
  void TakeCopy(StepId step, std::uint64_t state, std::function<void()> answer) override;

  // Null: the rank has not read it yet.
  const control::Assignment* assignment() const { return begun_ ? &assignment_ : nullptr; }

 private:
  // Of Begin: each calls the next one.
  void OpenCheckpoints();
  absl::Status TakeDirectory() const;
  void OfferCopies();
  void ProposeCopies(const std::vector<session::CopyOffer>& offers);
  void FollowChoice();
  void RestoreCopies(const std::string& choice, const std::vector<session::CopyOffer>& offers);
  void RestoreCheckpoint();
  absl::StatusOr<StepId> ChooseStep() const;
  void Load(StepId step);
  void Connect();
  void BeginCopies();
  void Built(absl::StatusOr<control::Resumed> resumed);

  // Calls `use` on the disk, and then returns true, unless the rank must not continue.
  bool UseDisk(const std::function<void()>& use);

  absl::StatusOr<std::uint64_t> ReadState(StepId step) const;
  std::string Directory() const;
  bool SavesAfter(StepId step) const;
  void ReachExchange(StepId step, const std::function<void()>& exchanges);
  void FinishStep(StepId step, const std::function<void()>& done);
  void Save(StepId step);
  absl::StatusOr<checkpoint::FileEntry> WriteState(StepId step, std::uint64_t state) const;
  void FinishSaving(const std::function<void()>& then);
  void EndWith(absl::StatusOr<session::RunEnd> end);
  void TearDown();
  void TryGone();
  // Calls of the rendezvous. They are repeated while the coordinator is away.
  void SetKey(const std::string& name, const std::string& value, std::function<void()> then);
  void WaitKeys(const std::vector<std::string>& names,
                std::function<void(const job::Rendezvous::Values&)> then);
  absl::Duration Delay() const;
  void GiveUp(const absl::Status& status);

  World& world_;
  CoordinatorProcess& coordinator_;
  DataPlane& plane_;
  const RankHost host_;
  control::Assignment assignment_;
  std::shared_ptr<RankCopies> copies_;  // null: it makes none
  std::string phase_ = "LOAD", waiting_for_;
  StepId last_step_;
  std::uint64_t state_ = 0;
  bool begun_ = false;
  bool from_memory_ = false;
  bool built_ = false;       // it was told how the preparation ended
  bool steps_over_ = false;  // all ranks have done all steps
  bool running_ = false, ended_ = false, halting_ = false, saving_ = false, using_disk_ = false;
  bool stopped_ = false, released_ = false, torn_down_ = false, dead_ = false;
};

}  // namespace takt::simulation
