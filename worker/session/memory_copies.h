// SPDX-License-Identifier: Apache-2.0
// Keeps the state of one rank a second time in memory: two copies of its own state in its worker's
// memory, and, if no replica holds the same, two in the memory of another rank's worker. They stay
// there when the generation ends (worker/checkpoint/state_copy.h), and the next one resumes from
// them (copy_restore.h).
//
// Where ranks share the optimizer's state, no replica holds the same. Then each rank copies only
// the layers that it would write to checkpoints, with the moments of all ranks that share them.
//
// At each boundary, training pauses while the state is copied. Then threads hash the copy, send it
// to `rank + shift` and receive that of `rank - shift`. A rank enters NORM_EXCHANGE of the next
// boundary's step only when that is done, and overwrites the older of its two copies after the
// exchange. So when any rank begins to overwrite the copy of a step, that of the next boundary is
// whole everywhere.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/control/assignment.h"
#include "common/control/attachment.h"
#include "common/metrics/registry.h"
#include "common/model/model.h"
#include "worker/backend/plan_cache.h"
#include "worker/checkpoint/state_copy.h"
#include "worker/session/copy_exchange.h"
#include "worker/session/kernel_plan.h"
#include "worker/session/moment_shards.h"
#include "worker/session/resume.h"
#include "worker/session/task_thread.h"
#include "worker/train/parameter_store.h"
#include "worker/transport/collective.h"
#include "worker/transport/transport.h"

namespace takt::session {

// All pointers are borrowed for the object's life.
struct MemoryCopiesOptions {
  const control::Assignment* assignment = nullptr;
  const model::Model* model = nullptr;
  RankMeeting meeting;
  worker_checkpoint::CopyStore* kept = nullptr;
  int threads = 1;                       // that copy
  metrics::Registry* metrics = nullptr;  // may be null
};

// One caller makes the calls in the order below; Finish may be called by two threads at a time.
// The destructor blocks as Finish does.
class MemoryCopies {
 public:
  explicit MemoryCopies(MemoryCopiesOptions options);

  // Fills `store` from the copies of an earlier generation. Returns nullopt if there is no step to
  // resume from. Blocks and errors: as RestoreFromCopies. transport: of host memory, borrowed.
  absl::StatusOr<std::optional<control::Resumed>> Restore(transport::Transport& transport,
                                                          train::ParameterStore& store);
  // Returns the kernel plan of the job that Restore found, for rank 0 alone; nullopt: none.
  const std::optional<KeptPlan>& kernel_plan() const { return kernel_plan_; }
  // Keeps the plan for the next generation.
  void KeepKernels(const backend::PlanCache& plans) const;
  // The calls from here on need copies.every_steps above 0 in the assignment.

  // Allocates the copies, or takes those of the earlier generation that have the same layers, and
  // opens the channels. resumed: what the rank resumes from. sharers: RankGroups::sharers. store,
  // transport, sharers: borrowed until the object ends. Blocks: until the neighbours do the same.
  // Errors: kResourceExhausted, those of the transport.
  absl::Status Begin(transport::Transport& transport, train::ParameterStore& store,
                     const control::Resumed& resumed, transport::Collective* sharers);

  std::int64_t every_steps() const { return options_.assignment->copies.every_steps; }
  // Whether the state is copied after this step.
  bool CopiesAfter(StepId step) const { return step.value() % every_steps() == 0; }
  // Copies the state after `step`, while training pauses. The rest of the work runs beside
  // training. All ranks call it for the same steps.
  // Copies that fail are no error: the worker logs and counts them. After a copy that only arrived
  // damaged it continues. After any other it makes no more, and tells its neighbours so at this
  // boundary or the next one (copy_exchange.h), which then make no more either.
  void Copy(StepId step);
  // Blocks until what Copy left to do is done or has failed, at the latest after the transport was
  // aborted.
  void Finish();

 private:
  using CopyPtr = std::shared_ptr<worker_checkpoint::StateCopy>;
  using Pair = std::array<CopyPtr, 2>;

  // Takes two copies with the layers of the rank out of `old`, or makes new ones.
  absl::StatusOr<Pair> TakePair(Rank rank, worker_checkpoint::StateCopies& old,
                                const control::Resumed& resumed) const;
  // Keeps the copies of this rank beyond the generation, and `others`.
  void Keep(worker_checkpoint::StateCopies others);
  absl::Status OpenChannels(transport::Transport& transport);
  // Copies the state while training stands still. Returns whether it could.
  bool Take(worker_checkpoint::StateCopy& copy, StepId step);
  // Sets the contents of the copy to the state, with the moments of all ranks that share them.
  absl::Status TakeState(worker_checkpoint::StateCopy& copy, StepId step);
  // Counts one copy of this rank's state, or one that failed.
  void Record(StepId step, const absl::Status& status);
  std::vector<LayerId> LayersOf(Rank rank) const;
  // Returns which part of them the rank has (PartOfLayers).
  int PartOf(Rank rank) const;
  Rank Shifted(int by) const;
  std::string PpRankText() const;  // for metrics
  bool sends() const { return options_.assignment->copies.shift != 0; }

  const MemoryCopiesOptions options_;
  std::optional<KeptPlan> kernel_plan_;
  train::ParameterStore* store_ = nullptr;
  std::optional<MomentShards> moments_;  // nullopt: no ranks share the optimizer's state
  Pair own_, peer_;                      // peer_ is empty if no rank sends
  std::optional<CopySender> to_;         // nullopt: no rank sends
  std::optional<CopyReceiver> from_;     // likewise
  int boundaries_ = 0;                   // at which it has copied
  std::atomic<bool> failed_ = false;
  // Last: they use everything above.
  TaskThread sender_{"takt-copy-send"}, receiver_{"takt-copy-recv"};
};

}  // namespace takt::session
