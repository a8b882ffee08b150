// SPDX-License-Identifier: Apache-2.0
// Brings the rows of a mixture to the ranks that hold their experts, and back, where several ranks
// share the experts of a block (docs/adr/0013-experts-over-ranks.md). Letters: e ranks; E experts,
// of which rank i has the E/e neighbouring ones from i E/e on; N tokens of a microbatch, k experts
// of a token; C columns of a row.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/id.h"
#include "worker/backend/backend.h"
#include "worker/train/group_calls.h"
#include "worker/transport/collective.h"

namespace takt::train {

// Says which rows of a microbatch go where. A rank's own rows are sorted by expert, so those for
// one rank are a run. Those that arrive are sorted by source, then expert, then token. So no row
// changes its place among its neighbours, and the rows of each source can be multiplied apart, with
// the shapes that they have where nobody shares experts. It is in host memory.
class ExpertArrivals {
 public:
  // Says where ops read what describes the rows to them.
  struct Places {
    const std::int32_t* offsets = nullptr;      // what offsets() has
    const std::int32_t* row_numbers = nullptr;  // 0, 1, 2, ...: as many as the longest run has
  };
  // counts: [e,E]: the rows of each rank for each expert. index: of this rank.
  // Precondition: e divides E.
  ExpertArrivals(std::span<const std::int32_t> counts, int ranks, int index, const Places& places);

  // A run of rows.
  struct Run {
    std::int64_t first = 0, count = 0;
    bool operator==(const Run&) const = default;
  };
  // Returns the rows of this rank for the experts of `rank`, among this rank's N*k rows.
  const Run& SentTo(int rank) const { return sent_[static_cast<std::size_t>(rank)]; }
  // Returns the rows of `rank` for the experts of this rank, among all rows that arrive.
  const Run& ReceivedFrom(int rank) const { return received_[static_cast<std::size_t>(rank)]; }
  int num_ranks() const { return static_cast<int>(sent_.size()); }
  std::int64_t num_sent() const { return sent_.back().first + sent_.back().count; }
  std::int64_t num_received() const { return received_.back().first + received_.back().count; }

  // Returns the ExpertRows::offsets of RowsFrom each rank: [e, E/e + 1].
  std::span<const std::int32_t> offsets() const { return offsets_; }
  // Describes the rows of ReceivedFrom(rank) to ops, counted from the first of them: each is a
  // token of its own, with one of this rank's E/e experts.
  // Precondition: there are some.
  backend::ExpertRows RowsFrom(int rank) const;

 private:
  std::int64_t experts_here_;
  Places places_;
  std::vector<Run> sent_, received_;  // by rank
  std::vector<std::int32_t> offsets_;
};

// Every rank of the group makes the same calls in the same order. Memory is the backend's. A call
// runs after all work that the backend was given before it, and work that the backend is given next
// runs after the call, even if the group has a stream of its own.
// Thread: the compute lane's.  Blocks: until the other ranks have come; without Announce only if
// the group has no stream.
// Errors: as transport::Collective and the backend.
class ExpertExchange {
 public:
  struct Options {
    transport::Collective* group = nullptr;  // of the ranks that share the experts, in their order
    backend::Backend* backend = nullptr;     // the lane's; both are borrowed
    std::int64_t experts = 0;                // E
  };
  static absl::StatusOr<std::unique_ptr<ExpertExchange>> Create(const Options& options);

  // Tells all ranks how many rows each one has for each expert. It waits for all work that the
  // backend was given. counts: [e,E] in host memory, which ExpertArrivals takes.
  absl::Status Announce(StepId step, const backend::ExpertRows& rows,
                        std::span<std::int32_t> counts);

  // Copies each row to the rank that holds its expert.
  // rows: [num_sent(),C], sorted by expert. arrived: [num_received(),C].
  absl::Status Dispatch(StepId step, const ExpertArrivals& arrivals, std::span<const float> rows,
                        std::span<float> arrived);
  // Copies what became of each row back to where it came from: the reverse of Dispatch.
  absl::Status Combine(StepId step, const ExpertArrivals& arrivals, std::span<const float> arrived,
                       std::span<float> rows);

 private:
  explicit ExpertExchange(const Options& options) : options_(options) {}
  absl::Status AnnounceOfHost(StepId step, const backend::ExpertRows& rows,
                              std::span<std::int32_t> counts);
  // Passes a run to each rank of the group, and copies this rank's own. sent_to(rank) is what goes
  // to a rank, and received_from(rank) where its rows go here.
  absl::Status PassRuns(StepId step, absl::FunctionRef<std::span<const float>(int rank)> sent_to,
                        absl::FunctionRef<std::span<float>(int rank)> received_from);

  const Options options_;
  backend::Buffer own_counts_;  // [E] integers in host memory that ops write
  std::unique_ptr<GroupCalls> on_group_;
};

}  // namespace takt::train
