// SPDX-License-Identifier: Apache-2.0
// Says what a rank has beside its layers where ranks share the experts of blocks
// (docs/adr/0013-experts-over-ranks.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "common/base/id.h"
#include "common/model/expert_share.h"
#include "worker/engine/part_cursor.h"
#include "worker/transport/collective.h"

namespace takt::train {

// The group in which the ranks meet, and memory for rows that exceed what the stash has room for.
// Thread: the compute lane's.
class ExpertMeetings {
 public:
  struct Options {
    transport::Collective* group = nullptr;  // of the ranks, in their order; borrowed
    engine::PartCursor* cursor = nullptr;    // is told of each meeting; borrowed
    model::ExpertShare share;
    bool shapes_only = false;  // nothing is in memory (meta_run.h)
    // If set, the surplus is kept in this object instead; borrowed.
    ExpertMeetings* surplus_of = nullptr;
  };
  explicit ExpertMeetings(const Options& options);

  // Says in which step the following meetings are.
  void BeginStep(StepId step) { step_ = step; }
  StepId step() const { return step_; }
  const model::ExpertShare& share() const { return options_.share; }
  transport::Collective& group() const { return *options_.group; }
  bool shapes_only() const { return options_.shapes_only; }

  // Runs a meeting of all ranks of the group.  Blocks: until they come.  Errors: those of
  // `meeting`, and those of engine::PartCursor.
  absl::Status Meet(absl::FunctionRef<absl::Status()> meeting);

  // The rows that came for one microbatch to one block, if they are more than the stash has room
  // for.
  struct Surplus {
    std::vector<float> input, weights, gate, up, product, d_output;
  };
  // Returns that of the stash whose counts are at this address. It exists from the first call to
  // Free. F calls Free, too, because no other call frees it where no W follows. Thread-safe for
  // different stashes.
  Surplus& SurplusOf(const std::int32_t* counts);
  void Free(const std::int32_t* counts);
  std::size_t num_surplus() const;

 private:
  const Options options_;
  StepId step_{0};
  mutable absl::Mutex mutex_;
  std::map<const std::int32_t*, Surplus> surplus_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace takt::train
