// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "common/program/program.h"
#include "worker/engine/engine.h"
#include "worker/engine/lane.h"
#include "worker/engine/timing_ring.h"

namespace takt::engine {

// Where a running program is: Engine::Status and Engine::LastDone. It reads what lanes write
// meanwhile, so it may be made at any time and on any thread.
struct Progress {
  const program::Program& program;
  const std::vector<std::unique_ptr<Lane>>& lanes;
  const TimingRing& timings;
  // PartCursor::current, and that of the B of a pair that runs beside its F.
  int part = -1, part_beside = -1;
  std::int64_t first_step = 1;  // that of iteration 0
  std::int64_t run_nanos = 0;   // when the last Run began

  std::vector<LaneStatus> Status() const;
  std::vector<DoneInstruction> LastDone(std::size_t most) const;

 private:
  LaneStatus StatusOf(const Lane& lane, std::int64_t now) const;
  StepId StepOf(std::uint64_t iteration) const {
    return StepId(first_step + static_cast<std::int64_t>(iteration));
  }
  // Returns when the lane reached its entry number `done`, which may be waiting for others.
  std::int64_t ArrivedNanos(const Lane& lane, std::uint64_t done) const;
};

}  // namespace takt::engine
