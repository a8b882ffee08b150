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

// Returns the columns of `rows` rows. There are none without rows.
std::size_t ColumnsOf(std::size_t elements, std::int64_t rows) {
  TAKT_CHECK(rows == 0 ? elements == 0 : elements % static_cast<std::size_t>(rows) == 0);
  return rows == 0 ? 0 : elements / static_cast<std::size_t>(rows);
}

}  // namespace

ExpertArrivals::ExpertArrivals(std::span<const std::int32_t> counts, int ranks, int index,
                               const Places& places)
    : experts_here_(std::ssize(counts) / ranks / ranks), places_(places) {
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
  for (int rank = 0; rank < ranks; ++rank) {
    add(sent_, counts_of(index, rank));
    const std::span<const std::int32_t> arriving = counts_of(rank, index);
    add(received_, arriving);
    offsets_.push_back(0);
    for (const std::int32_t count : arriving) offsets_.push_back(offsets_.back() + count);
  }
}

backend::ExpertRows ExpertArrivals::RowsFrom(int rank) const {
  TAKT_CHECK(ReceivedFrom(rank).count > 0);
  return {.offsets = places_.offsets + rank * (experts_here_ + 1),
          .pairs = places_.row_numbers,
          .tokens = ReceivedFrom(rank).count,
          .experts = experts_here_,
          .chosen = 1};
}

absl::StatusOr<std::unique_ptr<ExpertExchange>> ExpertExchange::Create(const Options& options) {
  TAKT_CHECK(options.group != nullptr && options.backend != nullptr);
  std::unique_ptr<ExpertExchange> exchange(new ExpertExchange(options));
  backend::Backend& backend = *options.backend;
  if (!backend.memory_is_host()) {
    ASSIGN_OR_RETURN(
        exchange->own_counts_,
        backend.AllocateHost(static_cast<std::size_t>(options.experts) * sizeof(std::int32_t)));
  }
  ASSIGN_OR_RETURN(exchange->on_group_, GroupCalls::Create(backend, *options.group));
  return exchange;
}

absl::Status ExpertExchange::Announce(StepId step, const backend::ExpertRows& rows,
                                      std::span<std::int32_t> counts) {
  const auto experts = static_cast<std::size_t>(options_.experts);
  transport::Collective& group = *options_.group;
  TAKT_CHECK(rows.experts == options_.experts &&
             counts.size() == static_cast<std::size_t>(group.size()) * experts);
  if (options_.backend->memory_is_host()) return AnnounceOfHost(step, rows, counts);
  const std::span own(reinterpret_cast<std::int32_t*>(own_counts_.data()), experts);
  RETURN_IF_ERROR(
      options_.backend->Run(backend::CountExpertRows{.rows = rows, .counts = own.data()}));
  RETURN_IF_ERROR(options_.backend->Synchronize());
  // Of what the group passes, only doubles are in host memory. Sums of counts are exact.
  std::vector<double> all(counts.size());
  std::ranges::copy(own, all.begin() + group.index() * options_.experts);
  RETURN_IF_ERROR(group.AllReduceSum(step, std::span(all)));
  std::ranges::transform(all, counts.begin(),
                         [](double count) { return static_cast<std::int32_t>(count); });
  return absl::OkStatus();
}

absl::Status ExpertExchange::AnnounceOfHost(StepId step, const backend::ExpertRows& rows,
                                            std::span<std::int32_t> counts) {
  const auto experts = static_cast<std::size_t>(options_.experts);
  const auto of_rank = [&](int rank) {
    return counts.subspan(static_cast<std::size_t>(rank) * experts, experts);
  };
  transport::Collective& group = *options_.group;
  const std::span<std::int32_t> own = of_rank(group.index());
  for (std::size_t e = 0; e < experts; ++e) own[e] = rows.offsets[e + 1] - rows.offsets[e];
  if (group.size() == 1) return absl::OkStatus();
  std::vector<std::span<const std::byte>> sent;
  std::vector<std::span<std::byte>> received;
  for (int rank = 0; rank < group.size(); ++rank) {
    sent.push_back(std::as_bytes(own));
    received.push_back(std::as_writable_bytes(of_rank(rank)));
  }
  return group.Pass(step, sent, received);
}

absl::Status ExpertExchange::PassRuns(StepId step,
                                      absl::FunctionRef<std::span<const float>(int rank)> sent_to,
                                      absl::FunctionRef<std::span<float>(int rank)> received_from) {
  transport::Collective& group = *options_.group;
  std::vector<std::span<const std::byte>> sent;
  std::vector<std::span<std::byte>> received;
  for (int rank = 0; rank < group.size(); ++rank) {
    sent.push_back(std::as_bytes(sent_to(rank)));
    received.push_back(std::as_writable_bytes(received_from(rank)));
  }
  const std::span<const float> own = sent_to(group.index());
  const std::span<float> place = received_from(group.index());
  if (options_.backend->memory_is_host()) {
    // This is no op, because the half of a pair has no turn while it meets.
    std::ranges::copy(own, place.begin());
  } else if (!own.empty()) {
    RETURN_IF_ERROR(options_.backend->Run(
        backend::Copy{.input = own.data(), .output = place.data(), .count = std::ssize(own)}));
  }
  if (group.size() == 1) return absl::OkStatus();
  return on_group_->Make([&] { return group.Pass(step, sent, received); });
}

absl::Status ExpertExchange::Dispatch(StepId step, const ExpertArrivals& arrivals,
                                      std::span<const float> rows, std::span<float> arrived) {
  const std::size_t to = ColumnsOf(rows.size(), arrivals.num_sent());
  const std::size_t from = ColumnsOf(arrived.size(), arrivals.num_received());
  return PassRuns(
      step, [&](int rank) { return ElementsOf(rows, arrivals.SentTo(rank), to); },
      [&](int rank) { return ElementsOf(arrived, arrivals.ReceivedFrom(rank), from); });
}

absl::Status ExpertExchange::Combine(StepId step, const ExpertArrivals& arrivals,
                                     std::span<const float> arrived, std::span<float> rows) {
  const std::size_t to = ColumnsOf(arrived.size(), arrivals.num_received());
  const std::size_t from = ColumnsOf(rows.size(), arrivals.num_sent());
  return PassRuns(
      step, [&](int rank) { return ElementsOf(arrived, arrivals.ReceivedFrom(rank), to); },
      [&](int rank) { return ElementsOf(rows, arrivals.SentTo(rank), from); });
}

}  // namespace takt::train
