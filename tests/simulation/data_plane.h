// SPDX-License-Identifier: Apache-2.0
// The connections between the ranks of a generation, and the steps that they do together. All ranks
// take part in the norm of the gradients of a step (NORM_EXCHANGE), so none completes a step before
// all have come so far. If one goes, the others notice it, unless its host vanished.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "absl/time/time.h"
#include "common/base/id.h"
#include "common/control/job_key.h"
#include "tests/simulation/world.h"
#include "worker/session/rank_runner.h"

namespace takt::simulation {

// One thread.
class DataPlane final {
 public:
  // A rank that runs.
  class Member {
   public:
    virtual ~Member() = default;
    virtual control::JobKey key() const = 0;
    virtual Rank rank() const = 0;
    virtual int num_ranks() const = 0;
    virtual bool halting() const = 0;
    virtual StepId last_step() const = 0;
    // The rank calls `exchanges` when it has come to the exchange of the step. It may never do.
    virtual void BeginStep(StepId step, std::function<void()> exchanges) = 0;
    // All ranks have come to it. The rank calls `done` when the step is complete, likewise.
    virtual void CompleteStep(StepId step, std::function<void()> done) = 0;
    // All steps are done.
    virtual void EndRun(session::RunEnd end) = 0;
    // The connection to that rank broke.
    virtual void LosePeer(Rank peer) = 0;
    // Another rank's copy of its state after this step arrives, to be kept in memory. answer: to be
    // called once it is kept.
    virtual void TakeCopy(StepId step, std::uint64_t state, std::function<void()> answer) = 0;
  };

  // world: borrowed.
  explicit DataPlane(World* world) : world_(*world) {}

  // The rank runs from now on, up to `last`.
  void Join(const std::shared_ptr<Member>& member, StepId last);
  // The rank does not run any more. The others notice it.
  void Leave(const control::JobKey& key, Rank rank);
  // Breaks the connection of two ranks of some generation.
  void BreakLink();
  // Brings the copy to that rank, unless it is gone by then. answer: called there.
  void SendCopy(const control::JobKey& key, Rank to, StepId step, std::uint64_t state,
                std::function<void()> answer);

 private:
  struct Group {
    std::map<Rank, std::shared_ptr<Member>> members;
    std::set<Rank> gone;
    std::set<Rank> busy;     // with the step that all have begun
    bool exchanged = false;  // all have come to its exchange
    StepId done, last;
    bool begun = false;  // some step was begun
    bool halts = false;  // it was decided to halt after `last`
  };

  void Advance(const control::JobKey& key);
  void Exchange(const control::JobKey& key, Rank rank);
  void StepDone(const control::JobKey& key, Rank rank);
  void Tell(const std::shared_ptr<Member>& member, Rank peer);

  World& world_;
  std::map<control::JobKey, Group> groups_;
};

}  // namespace takt::simulation
