// SPDX-License-Identifier: Apache-2.0
// Ranks' parts of a step put together: a step is ready to be committed when all of its ranks have
// reported it, and each is ready once, in order.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "common/base/id.h"
#include "common/control/reports.h"
#include "common/mesh/mesh.h"
#include "coordinator/store/record.h"

namespace takt::job {

// Of one generation of one job. One caller at a time.
class StepCollector final {
 public:
  // after: the last committed step.
  StepCollector(mesh::Mesh mesh, StepId after);

  // False: not a report of this mesh (no such rank, or no such step), or more than kMaxAhead steps
  // ahead.
  bool Add(const control::RankStepReport& report);
  // A report that is no step's part came with this sequence: acknowledged after the step's (0: the
  // state before the first). False: as Add.
  bool AddOther(Rank rank, std::int64_t sequence, StepId step);
  // Its reports are not waited for any more.
  void EndRank(Rank rank);

  // The next steps that are complete: reported by rank 0, and by every other rank unless that ended
  // or is more than kMaxLag steps behind. Job, generation, schedule and time are left to the
  // caller.
  std::vector<store::StepRecord> TakeReady();
  // Also those that lack other ranks' parts: nothing more will come.
  std::vector<store::StepRecord> TakeRest();

  StepId last_taken() const { return last_taken_; }

  // The newest sequence of each rank whose step is at most `committed` and that was not returned
  // before.
  std::map<Rank, std::int64_t> TakeAcknowledgements(StepId committed);

  static constexpr std::int64_t kMaxLag = 64;
  // So many reports a worker keeps until they are acknowledged, and no more: one that tells of a
  // later step made it up.
  static constexpr std::int64_t kMaxAhead = 1 << 18;

 private:
  using Parts = std::map<Rank, control::RankStepReport>;
  bool IsComplete(StepId step, const Parts& parts) const;
  store::StepRecord Merge(const Parts& parts) const;
  std::vector<store::StepRecord> Take(bool incomplete_too);

  const mesh::Mesh mesh_;
  StepId last_taken_;
  StepId newest_of_rank0_;
  std::map<StepId, Parts> pending_;
  std::vector<bool> ended_;  // by rank
  // By rank and step the newest sequence: what is sent again and again takes no more room.
  std::map<Rank, std::map<StepId, std::int64_t>> unacknowledged_;
};

}  // namespace takt::job
