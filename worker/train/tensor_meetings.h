// SPDX-License-Identifier: Apache-2.0
// Exchanges, inside the layers' passes, what the ranks that split layers need of one another.
// Letters: N rows of tokens of a microbatch, of which each rank has a run of n in the order of
// ranks; C hidden.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/id.h"
#include "common/model/parts.h"
#include "common/model/split.h"
#include "common/model/tensor_share.h"
#include "common/model/tree_sum.h"
#include "worker/backend/backend.h"
#include "worker/engine/part_cursor.h"
#include "worker/train/group_calls.h"
#include "worker/transport/collective.h"

namespace takt::train {

// Every rank makes the same calls in the same order. Memory is the backend's. A call runs after all
// work that the backend was given before it, and work that the backend is given next runs after the
// call, even if the group has a stream of its own. Nothing here adds in an order that depends on
// the number of ranks. With one rank, the calls that pass and add do nothing.
// Thread: the compute lane's.  Blocks: until the ranks that a call needs have come, unless the
// group has a stream.
// Errors: as transport::Collective and the backend.
class TensorMeetings {
 public:
  struct Options {
    transport::Collective* group = nullptr;  // of the ranks, in their order; null: there is one
    engine::PartCursor* cursor = nullptr;    // told of each meeting
    backend::Backend* backend = nullptr;     // the lane's; all three are borrowed
    model::TensorShare share;
    std::int64_t rows = 0, columns = 0, vocab = 0;  // N, C and the words
  };
  static absl::StatusOr<std::unique_ptr<TensorMeetings>> Create(const Options& options);

  // Says in which step the following calls are.
  void BeginStep(StepId step) { step_ = step; }

  const model::TensorShare& share() const { return options_.share; }
  std::int64_t rows_here() const { return options_.rows / options_.share.size; }
  std::int64_t first_row() const { return rows_here() * options_.share.index; }

  // Copies the rows of each rank to every rank. tensor: [N,C], of which this rank has filled its
  // own rows.
  absl::Status GatherRows(const backend::Output& tensor);
  // Adds the partial sums [N,C] of all ranks along the tree, and leaves in each rank's rows their
  // sum. The other rows mean nothing afterwards.
  absl::Status ScatterRows(float* partial);

  // Copies what each rank has of a softmax [D,N] by blocks of words to every rank.
  absl::Status GatherSoftmax(backend::SoftmaxPart* parts);
  // Adds the partial sums over blocks of words of all ranks (model::PartialSumsOf), and returns
  // the sum of this rank's rows [n,C].
  // mine: this rank's, [N,C] each, which are overwritten; their rows may be the result. received:
  // [n,C] for each partial sum of the others.
  absl::StatusOr<const float*> ScatterSums(std::span<float* const> mine, float* received);

  // Runs `meet`, with all its calls, as one meeting. It runs with one rank, too.
  absl::Status Exchange(absl::FunctionRef<absl::Status()> meet);
  // Adds the values of the ranks that hold the same pieces (model::Split), along the tree. All of
  // them get the sum. To be called inside Exchange. scratch: [n,C].
  absl::Status SumOverHolders(const model::Split& split, std::span<float> values, float* scratch);

 private:
  explicit TensorMeetings(const Options& options);
  // Runs a meeting, unless there are no other ranks to meet.
  absl::Status Meet(model::PartKind kind, absl::FunctionRef<absl::Status()> meeting);
  // Adds the `count` elements of `addend` to those of `sum`.
  absl::Status AddTo(float* sum, const float* addend, std::int64_t count);
  bool alone() const { return options_.share.size == 1; }
  std::size_t num_ranks() const { return static_cast<std::size_t>(options_.share.size); }

  const Options options_;
  std::vector<int> ends_;                 // one past the last block of each rank
  std::unique_ptr<GroupCalls> on_group_;  // null: there is nobody to meet
  StepId step_{0};
};

}  // namespace takt::train
