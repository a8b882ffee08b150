// SPDX-License-Identifier: Apache-2.0
// Puts the ranks' parts of a step together. A step is ready to be committed when all ranks have
// reported it. Each step is ready once, in order.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "common/base/id.h"
#include "common/control/reports.h"
#include "common/mesh/mesh.h"
#include "coordinator/store/record.h"

namespace takt::job {

// The steps of one generation of one job. One caller at a time.
class StepCollector final {
 public:
  // after: the last committed step.
  StepCollector(mesh::Mesh mesh, StepId after);

  // Returns false if the mesh has no such rank, if there is no such step, or if the report is more
  // than kMaxAhead steps ahead.
  bool Add(const control::RankStepReport& report);
  // A report of another kind came with this sequence. It is acknowledged after the reports of
  // `step` (0: the state before the first step). Returns false as Add does, or if more reports wait
  // than a worker keeps.
  bool AddOther(Rank rank, std::int64_t sequence, StepId step);
  // No step waits for reports of this rank any more.
  void EndRank(Rank rank);

  // Returns the next steps that are complete: rank 0 has reported them, and so has every other
  // rank, unless it ended or is more than kMaxLag steps behind. If rank 0 ended, the result of a
  // step may come from another rank. The caller fills in job, generation, schedule and time.
  std::vector<store::StepRecord> TakeReady();
  // Returns the remaining steps when no more reports will come, including those that lack parts of
  // other ranks.
  std::vector<store::StepRecord> TakeRest();

  StepId last_taken() const { return last_taken_; }
  // The newest step that the rank has reported; 0: none.
  StepId newest_of(Rank rank) const { return newest_[rank.value()]; }

  // Returns of each rank the newest sequence up to which all reports are of steps that are at most
  // `committed`, unless it was returned before. A checkpoint's report comes later than those of the
  // steps that followed its own: they must not be acknowledged with it.
  std::map<Rank, std::int64_t> TakeAcknowledgements(StepId committed);

  static constexpr std::int64_t kMaxLag = 64;
  // A worker keeps at most so many reports until they are acknowledged, so a report of a later step
  // must be wrong.
  static constexpr std::int64_t kMaxAhead = 1 << 18;

 private:
  using Parts = std::map<Rank, control::RankStepReport>;
  bool IsComplete(StepId step, const Parts& parts) const;
  // Returns the part that has the result of the step, null if none has it yet.
  const control::RankStepReport* ResultOf(const Parts& parts) const;
  store::StepRecord Merge(const control::RankStepReport& result, const Parts& parts) const;
  std::vector<store::StepRecord> Take(bool incomplete_too);

  mesh::Mesh mesh_;
  StepId last_taken_;
  std::map<StepId, Parts> pending_;
  std::vector<bool> ended_;     // by rank
  std::vector<StepId> newest_;  // by rank: the newest step that it has reported
  // By rank the steps of its reports, by their sequence. A report that is sent again takes no more
  // memory.
  std::map<Rank, std::map<std::int64_t, StepId>> unacknowledged_;
};

}  // namespace takt::job
