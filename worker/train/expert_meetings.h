// SPDX-License-Identifier: Apache-2.0
// Says what a rank has beside its layers where ranks share the experts of blocks
// (docs/adr/0013-experts-over-ranks.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/base/id.h"
#include "common/model/expert_share.h"
#include "worker/backend/backend.h"
#include "worker/engine/part_cursor.h"
#include "worker/train/expert_exchange.h"
#include "worker/transport/collective.h"

namespace takt::train {

// The group in which the ranks meet, what came in these meetings, and memory for rows that exceed
// what the stash has room for.
// Thread: the compute lane's.
class ExpertMeetings {
 public:
  struct Options {
    transport::Collective* group = nullptr;  // of the ranks, in their order
    engine::PartCursor* cursor = nullptr;    // is told of each meeting
    backend::Backend* backend = nullptr;     // the lane's; all are borrowed
    model::ExpertShare share;
    std::int64_t experts = 0;  // of a block
    // 0, 1, 2, ...: as many as rows may come from one rank; in the backend's memory, borrowed
    const std::int32_t* row_numbers = nullptr;
    bool shapes_only = false;  // nothing is in memory (meta_run.h)
    // If set, what came is kept in this object instead; borrowed.
    ExpertMeetings* arrivals_of = nullptr;
  };
  // Errors: as ExpertExchange::Create.
  static absl::StatusOr<std::unique_ptr<ExpertMeetings>> Create(const Options& options);

  // Says in which step the following meetings are.
  void BeginStep(StepId step) { step_ = step; }
  StepId step() const { return step_; }
  const model::ExpertShare& share() const { return options_.share; }
  ExpertExchange& exchange() const { return *exchange_; }
  const std::int32_t* row_numbers() const { return options_.row_numbers; }
  bool shapes_only() const { return options_.shapes_only; }

  // Runs a meeting of all ranks of the group.  Blocks: as the meeting.  Errors: those of
  // `meeting`, and those of engine::PartCursor.
  absl::Status Meet(absl::FunctionRef<absl::Status()> meeting);

  // The rows that came for one microbatch to one block, if they are more than the stash has room
  // for.
  struct Surplus {
    backend::Buffer input, weights, gate, up, product, d_output;
  };
  // Has what came for one microbatch to one block.
  struct Arrived {
    std::optional<ExpertArrivals> rows;  // from its first Announce on
    std::optional<Surplus> surplus;
  };
  // Returns what came for the stash whose offsets are at this address. It is valid as long as this
  // object. Thread-safe for different stashes.
  Arrived& ArrivedAt(const std::int32_t* offsets);

 private:
  explicit ExpertMeetings(const Options& options);

  const Options options_;
  std::unique_ptr<ExpertExchange> exchange_;
  StepId step_{0};
  absl::Mutex mutex_;
  std::map<const std::int32_t*, Arrived> arrived_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace takt::train
