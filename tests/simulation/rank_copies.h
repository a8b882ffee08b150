// SPDX-License-Identifier: Apache-2.0
// The copies that one rank makes of its state in memory, in place of session::MemoryCopies. They
// are made in its order: at a boundary a rank overwrites the older of its two copies, and sends the
// new one to another rank, which does the same with what it keeps for this one. The next boundary's
// exchange waits until both are done.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/base/id.h"
#include "common/control/assignment.h"
#include "common/control/attachment.h"
#include "common/control/job_key.h"
#include "common/mesh/mesh.h"
#include "tests/simulation/data_plane.h"
#include "tests/simulation/kept_copies.h"
#include "tests/simulation/world.h"
#include "worker/session/copy_choice.h"

namespace takt::simulation {

// One thread. Kept alive by what it waits for.
class RankCopies final : public std::enable_shared_from_this<RankCopies> {
 public:
  using Later = std::function<void(absl::Duration delay, std::function<void()> action)>;

  // All pointers are borrowed. later: as in RankHost.
  RankCopies(World* world, DataPlane* plane, KeptCopies* kept,
             const control::Assignment& assignment, Later later);

  // Returns what this worker holds and what the rank needs.
  session::CopyOffer Offer() const;
  // Returns the state of this rank by the offers of all ranks; nullopt: it cannot be had.
  std::optional<std::uint64_t> StateOf(const session::CopyChoice& choice,
                                       const std::vector<session::CopyOffer>& offers) const;
  // All ranks have loaded. resumed: what the rank resumes from.
  void Begin(const control::Resumed& resumed);

  bool CopiesAfter(StepId step) const {
    return step.value() % copies_.every_steps == 0 && step < last_;
  }
  // Precondition: not busy.
  void Copy(StepId step, std::uint64_t state);
  // Another rank's copy has come.
  void Take(StepId step, std::uint64_t state, std::function<void()> answer);
  // True while a copy is made, sent or awaited.
  bool busy() const { return pending_ > 0; }

 private:
  using Pair = std::array<std::shared_ptr<StateCopy>, 2>;
  struct Arrived {
    StepId step;
    std::uint64_t state = 0;
    std::function<void()> answer;
  };

  bool sends() const { return copies_.shift != 0; }
  Rank Shifted(int by) const;
  LayerRange LayersOf(Rank rank) const;
  void Keep(StateCopies others);
  void TakeArrived();

  World& world_;
  DataPlane& plane_;
  KeptCopies& kept_;
  const Later later_;
  const control::JobKey key_;
  const std::string job_id_;
  const Rank rank_;
  const mesh::Mesh mesh_;
  const control::MemoryCopies copies_;
  const StepId last_;  // of the job
  Pair own_, peer_;    // peer_ is empty if no rank sends
  int boundaries_ = 0, pending_ = 0;
  std::shared_ptr<StateCopy> receiving_;  // null: nothing is awaited
  StepId awaited_;                        // what it is to be of
  std::optional<Arrived> arrived_;
};

}  // namespace takt::simulation
