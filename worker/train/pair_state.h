// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <map>
#include <memory>

#include "worker/backend/backend.h"
#include "worker/engine/compute.h"
#include "worker/engine/pair_turns.h"
#include "worker/engine/part_cursor.h"
#include "worker/train/context_meetings.h"
#include "worker/train/expert_meetings.h"
#include "worker/train/stage.h"
#include "worker/train/tensor_meetings.h"
#include "worker/train/turn_backend.h"

namespace takt::train {

// The objects with which the B of a pair runs beside its F. The halves take turns to use what both
// share. The B has its own copy of each object of RankState that serves one user at a time.
// Weights, gradients and slots need neither, because no half uses what the other one changes.
struct PairState {
  explicit PairState(backend::Backend& compute)
      : forward(compute, turns, engine::PairHalf::kForward),
        backward(compute, turns, engine::PairHalf::kBackward) {}

  engine::Beside beside() { return {.turns = &turns, .cursor = &cursor}; }
  void BeginStep(StepId step) {
    if (meetings != nullptr) meetings->BeginStep(step);
    if (experts != nullptr) experts->BeginStep(step);
    if (context != nullptr) context->BeginStep(step);
  }

  engine::PairTurns turns;
  TurnBackend forward, backward;  // `forward` serves everything but the B of a pair
  // These are the B's.
  engine::PartCursor cursor;
  std::byte* scratch = nullptr;
  std::unique_ptr<TensorMeetings> meetings;  // null as in RankState
  std::unique_ptr<ExpertMeetings> experts;
  std::unique_ptr<ContextMeetings> context;
  std::map<StageId, Stage> stages;
};

}  // namespace takt::train
