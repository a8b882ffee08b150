// SPDX-License-Identifier: Apache-2.0
// Handles the checkpoints of a job for one rank. It finds the checkpoint to resume from, loads the
// rank's part, and saves the rank's part. Emulated models have no state, so their checkpoints
// contain only the step.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/control/assignment.h"
#include "common/control/attachment.h"
#include "common/model/model.h"
#include "worker/checkpoint/file_system.h"
#include "worker/session/checkpoint_saver.h"
#include "worker/session/expert_state.h"
#include "worker/session/kernel_plan.h"
#include "worker/session/moment_shards.h"
#include "worker/session/rank_runner.h"
#include "worker/session/resume.h"
#include "worker/session/split_state.h"
#include "worker/session/spread_tables.h"
#include "worker/train/parameter_store.h"
#include "worker/transport/collective.h"

namespace takt::session {

// All pointers are borrowed for the object's life.
struct RankCheckpointsOptions {
  const control::Assignment* assignment = nullptr;  // its job has `checkpoint`
  const model::Model* model = nullptr;
  std::string root;       // under which checkpoint.directory lies
  std::string data_root;  // the root of init_from
  int threads = 1;
  RankMeeting meeting;
  worker_checkpoint::FileSystem* files = nullptr;
  // As CheckpointSaverOptions::withdraw.
  std::function<bool(StepId step, const std::string& error)> withdraw;
  const Clock* clock = &Clock::Real();
  absl::Duration patience = SavedOptions().patience;  // to see the checkpoint that the job has
};

// One caller makes the calls in the order below. GiveUp may be called at any time by any thread.
class RankCheckpoints {
 public:
  explicit RankCheckpoints(RankCheckpointsOptions options) : options_(std::move(options)) {}
  ~RankCheckpoints() { GiveUp(); }

  // Makes the directory, checks that this rank sees the checkpoint that the job has and that all
  // ranks see the same, takes the directory for this generation, and removes what earlier ones
  // left. Blocks: until all ranks do the same. Errors: as AwaitSaved, JoinUnderRoot, CheckShared
  // and TakeOwnership; those of the disk are kFailedPrecondition (FieldError).
  absl::Status Open();
  // Fills `store` (null: the model has no state) from the checkpoint that all ranks agree on.
  // Blocks: until all ranks do the same. Errors: as AgreeOnResume.
  absl::StatusOr<control::Resumed> Restore(train::ParameterStore* store);
  // For a job that resumes from copies in memory instead: keeps the config of the checkpoint that
  // it has, as Restore does, so that the next checkpoints have the same. Without one that can be
  // read, they get that of the job.
  void KeepConfig();
  // Returns the kernel plan of the checkpoint that was restored, or nullopt if no checkpoint was
  // restored or it has none. Only rank 0 knows it.
  const std::optional<KeptPlan>& kernel_plan() const { return kernel_plan_; }
  // Allocates the memory for the copy of a save. store: borrowed until the last Save. kernel_plan:
  // what rank 0 keeps in its checkpoints; empty: none. groups: borrowed as the store is.
  struct Groups {
    transport::Collective* vocabulary = nullptr;  // of a pipeline that spreads it; else null
    transport::Collective* sharers = nullptr;     // of the optimizer's state; null: none share
    // It is of the ranks that split layers or share experts. Null: this rank alone.
    transport::Collective* tensor = nullptr;
  };
  absl::Status Allocate(train::ParameterStore* store, const std::string& kernel_plan,
                        const Groups& groups);

  // Saves the state after `step`, while training pauses. See CheckpointSaver::Save and Finish.
  void Save(StepId step, const std::function<void(Report)>& report);
  void Finish();
  // Makes saves in progress fail soon.
  void GiveUp() { given_up_ = true; }

 private:
  // Takes the directory for this generation, and removes what earlier ones left. For rank 0.
  absl::Status TakeDirectory();
  absl::Status Load(const checkpoint::StepFiles& step, train::ParameterStore* store);
  void ReadConfig(const checkpoint::StepFiles& step);
  absl::StatusOr<std::vector<worker_checkpoint::TextFile>> Texts(
      const std::string& kernel_plan) const;
  std::vector<worker_checkpoint::LayerState> WrittenState() const;
  // Adds to the copy what other ranks have of it.
  absl::Status Complete(StepId step, const worker_checkpoint::Snapshot& copy);
  const config::Checkpoint& spec() const { return *options_.assignment->job.checkpoint; }
  bool first() const { return options_.assignment->rank == Rank(0); }
  int num_layers() const { return static_cast<int>(options_.model->layers.size()); }

  const RankCheckpointsOptions options_;
  std::string directory_;
  std::string config_text_;  // from the checkpoint that was loaded; empty: none was
  std::optional<KeptPlan> kernel_plan_;
  train::ParameterStore* store_ = nullptr;
  std::optional<MomentShards> moments_;  // nullopt: no ranks share the optimizer's state
  std::optional<SpreadTables> tables_;   // nullopt: the vocabulary is not spread
  std::optional<SplitState> split_;      // nullopt: layers are not split
  std::optional<ExpertState> experts_;   // nullopt: ranks share no experts
  std::atomic<bool> given_up_ = false;
  std::unique_ptr<CheckpointSaver> saver_;
};

}  // namespace takt::session
