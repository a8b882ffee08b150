// SPDX-License-Identifier: Apache-2.0
#include "worker/train/expert_exchange.h"

#include <algorithm>
#include <cstddef>
#include <numeric>

#include "common/base/status.h"

namespace takt::train {
namespace {

// Returns the elements of a run of rows.
template <class Float>
std::span<Float> ElementsOf(std::span<Float> rows, const ExpertArrivals::Run& run,
                            std::size_t columns) {
  return rows.subspan(static_cast<std::size_t>(run.first) * columns,
                      static_cast<std::size_t>(run.count) * columns);
}

// Passes a run to each rank of the group, and copies this rank's own. sent_to(rank) is what goes to
// a rank, and received_from(rank) where its rows go here.
template <class SentTo, class ReceivedFrom>
absl::Status PassRuns(transport::Collective& group, StepId step, const SentTo& sent_to,
                      const ReceivedFrom& received_from) {
  std::vector<std::span<const std::byte>> sent;
  std::vector<std::span<std::byte>> received;
  for (int rank = 0; rank < group.size(); ++rank) {
    sent.push_back(std::as_bytes(sent_to(rank)));
    received.push_back(std::as_writable_bytes(received_from(rank)));
  }
  const auto own = static_cast<std::size_t>(group.index());
  std::ranges::copy(sent[own], received[own].begin());
  if (group.size() == 1) return absl::OkStatus();
  return group.Pass(step, sent, received);
}

// Returns the columns of `rows` rows. There are none without rows.
std::size_t ColumnsOf(std::size_t elements, std::int64_t rows) {
  TAKT_CHECK(rows == 0 ? elements == 0 : elements % static_cast<std::size_t>(rows) == 0);
  return rows == 0 ? 0 : elements / static_cast<std::size_t>(rows);
}

}  // namespace

ExpertArrivals::ExpertArrivals(std::span<const std::int32_t> counts, int ranks, int index)
    : experts_here_(std::ssize(counts) / ranks / ranks) {
  TAKT_CHECK(std::ssize(counts) == experts_here_ * ranks * ranks);
  const auto here = static_cast<std::size_t>(experts_here_);
  // Returns the counts of a source's rows for the experts of an owner.
  const auto counts_of = [&](int source, int owner) {
    return counts.subspan(static_cast<std::size_t>(source * ranks + owner) * here, here);
  };
  const auto add = [](std::vector<Run>& runs, std::span<const std::int32_t> of_experts) {
    const std::int64_t first = runs.empty() ? 0 : runs.back().first + runs.back().count;
    runs.push_back({first, std::accumulate(of_experts.begin(), of_experts.end(), std::int64_t{0})});
  };
  std::int64_t longest = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    add(sent_, counts_of(index, rank));
    const std::span<const std::int32_t> arriving = counts_of(rank, index);
    add(received_, arriving);
    longest = std::max(longest, received_.back().count);
    offsets_.push_back(0);
    for (const std::int32_t count : arriving) offsets_.push_back(offsets_.back() + count);
  }
  pairs_.resize(static_cast<std::size_t>(longest));
  std::iota(pairs_.begin(), pairs_.end(), 0);
}

backend::ExpertRows ExpertArrivals::RowsFrom(int rank) const {
  TAKT_CHECK(ReceivedFrom(rank).count > 0);
  return {.offsets = offsets_.data() + rank * (experts_here_ + 1),
          .pairs = pairs_.data(),
          .tokens = ReceivedFrom(rank).count,
          .experts = experts_here_,
          .chosen = 1};
}

absl::Status ExpertExchange::Announce(StepId step, std::span<const std::int32_t> offsets,
                                      std::span<std::int32_t> counts) {
  const auto experts = static_cast<std::size_t>(experts_);
  TAKT_CHECK(offsets.size() == experts + 1 &&
             counts.size() == static_cast<std::size_t>(group_.size()) * experts);
  const auto of_rank = [&](int rank) {
    return counts.subspan(static_cast<std::size_t>(rank) * experts, experts);
  };
  std::vector<std::int32_t> own(experts);
  for (std::size_t e = 0; e < experts; ++e) own[e] = offsets[e + 1] - offsets[e];
  return PassRuns(
      group_, step, [&](int) { return std::span<const std::int32_t>(own); }, of_rank);
}

absl::Status ExpertExchange::Dispatch(StepId step, const ExpertArrivals& arrivals,
                                      std::span<const float> rows, std::span<float> arrived) {
  const std::size_t to = ColumnsOf(rows.size(), arrivals.num_sent());
  const std::size_t from = ColumnsOf(arrived.size(), arrivals.num_received());
  return PassRuns(
      group_, step, [&](int rank) { return ElementsOf(rows, arrivals.SentTo(rank), to); },
      [&](int rank) { return ElementsOf(arrived, arrivals.ReceivedFrom(rank), from); });
}

absl::Status ExpertExchange::Combine(StepId step, const ExpertArrivals& arrivals,
                                     std::span<const float> arrived, std::span<float> rows) {
  const std::size_t to = ColumnsOf(arrived.size(), arrivals.num_received());
  const std::size_t from = ColumnsOf(rows.size(), arrivals.num_sent());
  return PassRuns(
      group_, step, [&](int rank) { return ElementsOf(arrived, arrivals.ReceivedFrom(rank), to); },
      [&](int rank) { return ElementsOf(rows, arrivals.SentTo(rank), from); });
}

}  // namespace takt::train
