// SPDX-License-Identifier: Apache-2.0
// Brings the rows of a mixture to the ranks that hold their experts, and back, where several ranks
// share the experts of a block (docs/adr/0013-experts-over-ranks.md). Letters: e ranks; E experts,
// of which rank i has the E/e neighbouring ones from i E/e on; N tokens of a microbatch, k experts
// of a token; C columns of a row.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "common/base/id.h"
#include "worker/backend/expert_ops.h"
#include "worker/transport/collective.h"

namespace takt::train {

// Says which rows of a microbatch go where. A rank's own rows are sorted by expert, so those for
// one rank are a run. Those that arrive are sorted by source, then expert, then token. So no row
// changes its place among its neighbours, and the rows of each source can be multiplied apart, with
// the shapes that they have where nobody shares experts.
class ExpertArrivals {
 public:
  // counts: [e,E]: the rows of each rank for each expert. index: of this rank.
  // Precondition: e divides E.
  ExpertArrivals(std::span<const std::int32_t> counts, int ranks, int index);

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

  // Describes the rows of ReceivedFrom(rank) to ops, counted from the first of them: each is a
  // token of its own, with one of this rank's E/e experts. It is valid as long as this object.
  // Precondition: there are some.
  backend::ExpertRows RowsFrom(int rank) const;

 private:
  std::int64_t experts_here_;
  std::vector<Run> sent_, received_;   // by rank
  std::vector<std::int32_t> offsets_;  // [e, E/e + 1]: of RowsFrom
  std::vector<std::int32_t> pairs_;    // 0, 1, 2, ...: as many as the longest run has
};

// Every rank of the group makes the same calls in the same order. Memory is the host's, and what
// was computed before a call is done.
// Thread: one caller at a time.  Blocks: until the other ranks have come.
// Errors: as transport::Collective.
class ExpertExchange {
 public:
  // group: of the ranks that share the experts, in their order; borrowed. experts: E.
  ExpertExchange(transport::Collective& group, std::int64_t experts)
      : group_(group), experts_(experts) {}

  // Tells all ranks how many rows each one has for each expert. offsets: [E+1], as RouteTokens
  // writes them. counts: [e,E], which ExpertArrivals takes.
  absl::Status Announce(StepId step, std::span<const std::int32_t> offsets,
                        std::span<std::int32_t> counts);

  // Copies each row to the rank that holds its expert.
  // rows: [num_sent(),C], sorted by expert. arrived: [num_received(),C].
  absl::Status Dispatch(StepId step, const ExpertArrivals& arrivals, std::span<const float> rows,
                        std::span<float> arrived);
  // Copies what became of each row back to where it came from: the reverse of Dispatch.
  absl::Status Combine(StepId step, const ExpertArrivals& arrivals, std::span<const float> arrived,
                       std::span<float> rows);

 private:
  transport::Collective& group_;
  const std::int64_t experts_;
};

}  // namespace takt::train
