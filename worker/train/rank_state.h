// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>

#include "absl/status/statusor.h"
#include "common/layout/rank_layout.h"
#include "worker/backend/backend.h"
#include "worker/engine/part_cursor.h"
#include "worker/train/context_meetings.h"
#include "worker/train/expert_gradients.h"
#include "worker/train/expert_meetings.h"
#include "worker/train/foresight.h"
#include "worker/train/loss_share.h"
#include "worker/train/optimizer.h"
#include "worker/train/pair_state.h"
#include "worker/train/parameter_store.h"
#include "worker/train/result_ring.h"
#include "worker/train/section_memory.h"
#include "worker/train/shard_state.h"
#include "worker/train/spread_state.h"
#include "worker/train/stage.h"
#include "worker/train/tensor_meetings.h"
#include "worker/train/trainer.h"

namespace takt::train {

// What all instructions of a rank share, whichever program they belong to. The slots of the
// programs order the instructions that use it; each part says which lane changes it while a program
// runs.
struct RankState {
  // Makes the backends, the memory of the parameters, and the stages. Weights are zero until the
  // trainer fills them. Precondition: the programs belong to the rank's job and partition, which
  // the reader of an assignment has checked (common/control). Errors: kResourceExhausted.
  static absl::StatusOr<std::unique_ptr<RankState>> Create(const TrainerOptions& options);

  explicit RankState(const TrainerOptions& options)
      : options(options), foresight(AlwaysForesees(options)) {}

  // Returns the group with which the gradients of a stage are summed, or null if no other rank
  // holds it.
  transport::Collective* ReplicasOf(StageId stage) const;
  // Returns the groups that sum its gradients. Precondition: ReplicasOf returns one.
  GradientGroups GradientGroupsOf(StageId stage) const;
  ResultGroups Groups() const;
  // Returns how many leaves the rank's replica has (config::Parallelism::data_leaves), each with as
  // many microbatches in a row.
  int leaves() const;
  // Returns whether W of this microbatch is the first of a leaf, whose gradients start a new sum.
  bool BeginsLeaf(MicrobatchId microbatch) const;
  // Copies the gradients of a stage aside if W of this microbatch was the last of a leaf, and
  // another leaf follows.  Compute lane. backend: of the lane, or of a half of a pair on it.
  absl::Status KeepLeaf(backend::Backend& backend, StageId stage, MicrobatchId microbatch);
  // Returns whether this rank has some of the words alone, or none.
  bool SharesVocabulary() const { return vocabulary != nullptr || meetings != nullptr; }

  // Packs the newest weights right after OPT has made them, or with kForeseen those that SPECULATE
  // has made, except those that these instructions have rounded already. Weights of which the rank
  // has made only a shard are packed later: by PackGathered, or by GATHER_WEIGHTS where only a
  // shard of them is kept in f32. Compute lane.
  absl::Status Pack(int version = 0);
  // Packs this version of the weights of a stage, as far as they are whole in f32, unless that was
  // done since they were gathered. The stage after the last one stands for the rank's rows of the
  // vocabulary. Call it before the first use of them.  Compute lane.
  absl::Status PackGathered(StageId stage, int version = 0);
  // Makes the weights of stages ready for a pass: packs them (-1: none) and selects their version.
  // half: of the pass, if it is one of a pair.
  absl::Status ReadyWeights(std::span<const StageId> ids, int version, engine::PairHalf half);

  const TrainerOptions options;
  layout::RankLayout layout;
  std::unique_ptr<backend::Backend> compute;  // the compute lane's; outlives every buffer below
  std::unique_ptr<backend::MemoryBackend> reduce;  // the reduce lane's
  std::unique_ptr<backend::MemoryBackend> load;    // the load lane's
  std::unique_ptr<ParameterStore> parameters;      // the compute lane selects and updates weights
  SectionMemory shared;
  std::byte* scratch = nullptr;              // of layers
  std::byte* meeting_scratch = nullptr;      // null: there are no meetings
  float* rotary_table = nullptr;             // null: the model's family has no rotary positions
  std::int32_t* row_numbers = nullptr;       // ExpertMeetings::Options; null: no shared experts
  engine::PartCursor part_cursor;            // the compute lane's
  std::unique_ptr<TensorMeetings> meetings;  // null: layers are not split
  std::unique_ptr<ExpertMeetings> experts;   // null: ranks share no experts
  std::unique_ptr<ContextMeetings> context;  // null: no other rank has tokens of its sequences
  std::unique_ptr<PairState> pair;           // null: the halves of pairs run one after the other
  std::map<StageId, Stage> stages;
  // Whether Ws of a stage have left gradients to add to since the last OPT. Only the compute lane
  // uses it.
  std::map<StageId, bool> has_gradients;
  std::set<std::pair<StageId, int>> not_packed;  // what PackGathered has to pack; likewise
  std::unique_ptr<SpreadState> vocabulary;       // null: it is not spread
  std::unique_ptr<ShardState> shards;  // null: each rank has the optimizer's state of all it holds
  // The trainer sets it once the weights exist, before it binds.
  std::optional<Optimizer> optimizer;
  ResultRing results;   // the reduce lane's
  Foresight foresight;  // likewise; the compute lane and that of the vocabulary read it

 private:
  static bool AlwaysForesees(const TrainerOptions& options);
  absl::Status CreateParameters();
  absl::Status CreateMeetings();
  absl::Status CreateExpertMeetings();
  absl::Status CreateContextMeetings();
  absl::Status CreateStages();
  // Returns whether the halves of pairs can run side by side.
  bool RunsHalvesBeside() const;
  StageOptions OptionsOf(const layout::StageLayout& stage) const;
  StageOptions PairOptionsOf(const layout::StageLayout& stage) const;
  // Returns what the auxiliary loss of a sequence is multiplied by: its weight over the sequences
  // of an update, as the loss is divided by its tokens.
  double AuxiliaryScale() const;
  absl::Status AllocateShared();
};

}  // namespace takt::train
