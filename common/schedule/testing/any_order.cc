// SPDX-License-Identifier: Apache-2.0
#include "common/schedule/testing/any_order.h"

#include <algorithm>

#include "common/schedule/testing/any_family.h"

namespace takt::schedule {
namespace {

Schedule AnySizes() {
  Schedule schedule{.name = "random"};
  schedule.placement = static_cast<Placement>(Uniform(1, 4));
  int num_ranks = Uniform(1, 6);
  schedule.num_microbatches = Uniform(1, 7);
  switch (schedule.placement) {
    case Placement::kLoop:
      schedule.num_stages = num_ranks * Uniform(1, 4);
      break;
    case Placement::kV:
      schedule.num_stages = num_ranks * 2;
      break;
    case Placement::kBidirectional:
      schedule.num_stages = num_ranks = 2 * Uniform(1, 4);
      schedule.num_microbatches = Uniform(2, 8);
      break;
  }
  schedule.ranks.resize(num_ranks);
  return schedule;
}

// Runs actions one by one, in any order in which their inputs are there.
class Draw {
 public:
  Draw(Schedule& schedule, bool pairs) : schedule_(schedule), pairs_(pairs) {
    if (schedule.placement == Placement::kBidirectional) {
      for (int m = 0; m < schedule.num_microbatches; ++m) up_.push_back(Uniform(0, 2) == 0);
      up_[0] = !up_[1];  // some each way
    }
    for (int m = 0; m < schedule.num_microbatches; ++m) {
      ready_.push_back({StageId(0), ActionKind::kForward, MicrobatchId(m)});
    }
  }

  void Run() {
    while (!ready_.empty()) {
      Action action = Take(Uniform(0, static_cast<int>(ready_.size())));
      const int rank = RankOf(action);
      const int partner = pairs_ && Uniform(0, 2) == 0 ? PartnerOf(action, rank) : -1;
      if (partner < 0) {
        schedule_.ranks[rank].push_back(action);
        Finish(action);
        continue;
      }
      const Action backward = Take(partner);
      action.joins_next = true;
      schedule_.ranks[rank].push_back(action);
      schedule_.ranks[rank].push_back(backward);
      Finish(action);
      Finish(backward);
    }
  }

 private:
  Action Take(int index) {
    const Action action = ready_[index];
    ready_.erase(ready_.begin() + index);
    return action;
  }

  int RankOf(const Action& action) const {
    const int home = RankOfStage(schedule_.placement, schedule_.num_ranks(), action.stage).value();
    const bool up = !up_.empty() && up_[action.microbatch.value()];
    return up ? schedule_.num_ranks() - 1 - home : home;
  }

  // The index of a ready B on the same rank that `action`, if it is an F, may overlap with; -1:
  // none.
  int PartnerOf(const Action& action, int rank) const {
    if (action.kind != ActionKind::kForward) return -1;
    const auto partner = std::find_if(ready_.begin(), ready_.end(), [&](const Action& other) {
      return other.kind == ActionKind::kBackward && other.microbatch != action.microbatch &&
             RankOf(other) == rank;
    });
    return partner == ready_.end() ? -1 : static_cast<int>(partner - ready_.begin());
  }

  void Finish(const Action& action) {
    const int stage = action.stage.value();
    const bool forward = action.kind == ActionKind::kForward;
    if (forward && stage + 1 < schedule_.num_stages) {
      ready_.push_back({StageId(stage + 1), ActionKind::kForward, action.microbatch});
    } else if (forward) {
      AddBackward(stage, action.microbatch);
    }
    if (action.kind == ActionKind::kInputGrad) {
      ready_.push_back({action.stage, ActionKind::kWeightGrad, action.microbatch});
    }
    const bool passes_on =
        action.kind == ActionKind::kInputGrad || action.kind == ActionKind::kBackward;
    if (passes_on && stage > 0) AddBackward(stage - 1, action.microbatch);
  }

  void AddBackward(int stage, MicrobatchId microbatch) {
    const ActionKind kind = Uniform(0, 2) == 0 ? ActionKind::kBackward : ActionKind::kInputGrad;
    ready_.push_back({StageId(stage), kind, microbatch});
  }

  Schedule& schedule_;
  const bool pairs_;
  std::vector<bool> up_;  // by microbatch; empty: one way only
  std::vector<Action> ready_;
};

}  // namespace

Schedule AnyOrder(bool pairs) {
  Schedule schedule = AnySizes();
  Draw(schedule, pairs).Run();
  return schedule;
}

}  // namespace takt::schedule
