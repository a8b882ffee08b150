// SPDX-License-Identifier: Apache-2.0
// Where replicas share the weights: when a rank makes those of a stage whole, and frees them.
#include <algorithm>
#include <iterator>
#include <set>

#include "common/program/lowering.h"
#include "common/program/rank_lowering.h"

namespace takt::program {

void RankLowering::PrepareShards(StageId stage) {
  StageState& state = stages_.at(stage);
  for (std::size_t i = 0; i < state.weights[0].size(); ++i)
    state.shards.push_back(slots_.Fixed(SlotKind::kShard, stage, LayerAt(stage, i).value()));
}

// UNSHARD and RESHARD follow one another on the reduce lane. RESHARD waits for the last reader of
// what it frees. So weights are gathered while the stage beside them still computes, and no more of
// them are whole than the list says.
void RankLowering::AddUnshards(int position) {
  const schedule::Row& row = schedule_.ranks[rank_];
  std::set<StageId> needed = {row[position].stage};
  if (schedule::BeginsPair(row, position)) needed.insert(row[position + 1].stage);
  for (const StageId stage : needed) {
    if (unsharded_.contains(stage)) continue;
    if (std::ssize(unsharded_) == kMostUnsharded) AddReshard(LastUsed(needed, position));
    Instruction& added = Add(Op::kUnshard, LaneOf(LaneKind::kReduce));
    added.stage = stage;
    added.reads = stages_.at(stage).shards;
    added.writes = stages_.at(stage).weights[0];
    unsharded_.insert(stage);
  }
}

// Of the stages that are whole and not needed now, the one that is needed last, or never again, is
// freed.
StageId RankLowering::LastUsed(const std::set<StageId>& needed, int position) const {
  const schedule::Row& row = schedule_.ranks[rank_];
  StageId last(-1);
  auto last_use = row.begin();
  for (const StageId stage : unsharded_) {
    if (needed.contains(stage)) continue;
    const auto use =
        std::ranges::find(row.begin() + position, row.end(), stage, &schedule::Action::stage);
    if (last.value() >= 0 && use <= last_use) continue;
    last = stage;
    last_use = use;
  }
  return last;
}

void RankLowering::AddReshard(StageId stage) {
  Instruction& added = Add(Op::kReshard, LaneOf(LaneKind::kReduce));
  added.stage = stage;
  added.writes = stages_.at(stage).weights[0];
  unsharded_.erase(stage);
}

void RankLowering::AddReshards() {
  while (!unsharded_.empty()) AddReshard(*unsharded_.begin());
}

}  // namespace takt::program
