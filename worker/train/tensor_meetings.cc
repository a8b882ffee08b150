// SPDX-License-Identifier: Apache-2.0
#include "worker/train/tensor_meetings.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <utility>

#include "common/base/status.h"
#include "common/model/split_layers.h"
#include "common/model/vocabulary.h"

namespace takt::train {
namespace {

using model::PartKind;

void Add(float* into, const float* addend, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) into[i] += addend[i];
}

}  // namespace

TensorMeetings::TensorMeetings(const Options& options) : options_(options) {
  const model::TensorShare& share = options_.share;
  TAKT_CHECK(alone() ? options_.group == nullptr
                     : options_.group != nullptr && options_.group->size() == share.size &&
                           options_.group->index() == share.index && options_.cursor != nullptr);
  for (int rank = 0; rank < share.size; ++rank)
    ends_.push_back(model::BlocksOf(model::ShareOf(share, rank), options_.vocab).last);
}

absl::Status TensorMeetings::Meet(PartKind kind, absl::FunctionRef<absl::Status()> meeting) {
  if (alone()) return absl::OkStatus();
  return options_.cursor->Meet(kind, model::PartGroup::kTensor, meeting);
}

absl::Status TensorMeetings::GatherRows(const backend::Output& tensor) {
  const auto count = static_cast<std::size_t>(rows_here() * options_.columns);
  return Meet(PartKind::kGather, [&]() -> absl::Status {
    if (tensor.bf16 == nullptr) {
      std::vector<std::span<float>> parts;
      for (std::size_t rank = 0; rank < num_ranks(); ++rank)
        parts.emplace_back(tensor.f32 + rank * count, count);
      return options_.group->AllGatherParts(step_, parts);
    }
    std::vector<std::span<std::byte>> parts;
    for (std::size_t rank = 0; rank < num_ranks(); ++rank)
      parts.push_back(std::as_writable_bytes(std::span(tensor.bf16 + rank * count, count)));
    return options_.group->AllGather(step_, parts);
  });
}

absl::Status TensorMeetings::ScatterRows(float* partial) {
  const auto count = static_cast<std::size_t>(rows_here() * options_.columns);
  return Meet(PartKind::kScatter, [&] {
    std::vector<std::span<float>> parts;
    for (std::size_t rank = 0; rank < num_ranks(); ++rank)
      parts.emplace_back(partial + rank * count, count);
    return options_.group->ReduceScatterTree(step_, parts);
  });
}

int TensorMeetings::OwnerOf(std::int32_t token) const {
  const auto block = static_cast<int>(token / model::kVocabularyBlock);
  return static_cast<int>(std::ranges::upper_bound(ends_, block) - ends_.begin());
}

absl::Status TensorMeetings::TokenRows(const std::int32_t* tokens, const ParameterRef* table,
                                       float* sent, float* received, float* output) {
  if (options_.shapes_only) return Meet(PartKind::kExchange, [] { return absl::OkStatus(); });
  const std::int64_t columns = options_.columns, here = rows_here();
  const int self = options_.share.index;
  const auto row_of = [&](std::int64_t i) {
    return table->weight + (tokens[i] - table->first_row) * columns;
  };
  std::vector<std::span<const std::byte>> to_ranks(num_ranks());
  std::vector<std::span<std::byte>> from_ranks(num_ranks());
  for (int rank = 0; rank < options_.share.size; ++rank) {
    if (rank == self) continue;
    // What that rank needs of this one's words, and what this rank needs of that one's.
    float* next = sent;
    for (std::int64_t i = rank * here; i < (rank + 1) * here; ++i) {
      if (OwnerOf(tokens[i]) == self) next = std::copy_n(row_of(i), columns, next);
    }
    to_ranks[static_cast<std::size_t>(rank)] = std::as_bytes(std::span(sent, next));
    sent = next;
    const auto rows = std::count_if(tokens + self * here, tokens + (self + 1) * here,
                                    [&](std::int32_t token) { return OwnerOf(token) == rank; });
    from_ranks[static_cast<std::size_t>(rank)] =
        std::as_writable_bytes(std::span(received, static_cast<std::size_t>(rows * columns)));
    received += rows * columns;
  }
  RETURN_IF_ERROR(
      Meet(PartKind::kExchange, [&] { return options_.group->Pass(step_, to_ranks, from_ranks); }));
  std::vector<const float*> next(num_ranks());
  for (std::size_t rank = 0; rank < num_ranks(); ++rank)
    next[rank] = reinterpret_cast<const float*>(from_ranks[rank].data());
  for (std::int64_t i = self * here; i < (self + 1) * here; ++i, output += columns) {
    const int owner = OwnerOf(tokens[i]);
    const float*& from = next[static_cast<std::size_t>(owner)];
    std::copy_n(owner == self ? row_of(i) : std::exchange(from, from + columns), columns, output);
  }
  return absl::OkStatus();
}

void TensorMeetings::AddTokenGradients(const std::int32_t* tokens, const float* d_output,
                                       const ParameterRef& table, bool accumulate) const {
  if (options_.shapes_only) return;
  if (!accumulate) std::fill_n(table.gradient, table.elements(), 0.0F);
  const std::int64_t columns = options_.columns;
  for (std::int64_t i = 0; i < options_.rows; ++i) {
    if (OwnerOf(tokens[i]) != options_.share.index) continue;
    Add(table.gradient + (tokens[i] - table.first_row) * columns, d_output + i * columns, columns);
  }
}

absl::Status TensorMeetings::GatherSoftmax(backend::SoftmaxPart* parts) {
  return Meet(PartKind::kGather, [&] {
    std::vector<std::span<std::byte>> by_rank;
    for (std::size_t rank = 0; rank < num_ranks(); ++rank) {
      const int first = rank == 0 ? 0 : ends_[rank - 1];
      const std::span<backend::SoftmaxPart> its(
          parts + first * options_.rows,
          static_cast<std::size_t>((ends_[rank] - first) * options_.rows));
      by_rank.push_back(std::as_writable_bytes(its));
    }
    return options_.group->AllGather(step_, by_rank);
  });
}

absl::StatusOr<const float*> TensorMeetings::ScatterSums(std::span<float* const> mine,
                                                         float* received) {
  const std::int64_t count = rows_here() * options_.columns;
  const auto rows_of = [&](float* sums, std::size_t rank) {
    return std::span(sums + static_cast<std::int64_t>(rank) * count,
                     static_cast<std::size_t>(count));
  };
  const auto self = static_cast<std::size_t>(options_.share.index);
  if (options_.shapes_only) {
    RETURN_IF_ERROR(Meet(PartKind::kScatter, [] { return absl::OkStatus(); }));
    return received;
  }
  std::vector<model::PartialSums> sums;  // by rank
  std::vector<std::vector<float*>> values(num_ranks());
  std::size_t most = 0;
  for (std::size_t rank = 0; rank < num_ranks(); ++rank) {
    sums.push_back(model::PartialSumsOf(rank == 0 ? 0 : ends_[rank - 1], ends_[rank]));
    most = std::max(most, sums.back().parts.size());
    for (std::size_t i = 0; i < sums.back().parts.size(); ++i) {
      values[rank].push_back(rank == self ? rows_of(mine[i], self).data() : received);
      if (rank != self) received += count;
    }
  }
  RETURN_IF_ERROR(Meet(PartKind::kScatter, [&]() -> absl::Status {
    for (std::size_t i = 0; i < most; ++i) {
      std::vector<std::span<const std::byte>> to_ranks(num_ranks());
      std::vector<std::span<std::byte>> from_ranks(num_ranks());
      for (std::size_t rank = 0; rank < num_ranks(); ++rank) {
        if (rank == self) continue;
        if (i < mine.size()) to_ranks[rank] = std::as_bytes(rows_of(mine[i], rank));
        if (i < values[rank].size()) {
          from_ranks[rank] =
              std::as_writable_bytes(std::span(values[rank][i], static_cast<std::size_t>(count)));
        }
      }
      RETURN_IF_ERROR(options_.group->Pass(step_, to_ranks, from_ranks));
    }
    return absl::OkStatus();
  }));
  std::vector<float*> stack;
  const auto add = [&](int i) {
    Add(stack[static_cast<std::size_t>(i)], stack[static_cast<std::size_t>(i) + 1], count);
    stack.pop_back();
    return absl::OkStatus();
  };
  model::TreeSum sum;
  for (std::size_t rank = 0; rank < num_ranks(); ++rank) {
    for (std::size_t i = 0; i < values[rank].size(); ++i) {
      stack.push_back(values[rank][i]);
      RETURN_IF_ERROR(sum.Push(sums[rank].parts[i], add));
    }
  }
  RETURN_IF_ERROR(sum.Finish(add));
  return stack.front();
}

absl::Status TensorMeetings::Exchange(absl::FunctionRef<absl::Status()> meet) {
  return alone() ? meet() : Meet(PartKind::kExchange, meet);
}

absl::Status TensorMeetings::SumOverHolders(const model::Split& split, std::span<float> values) {
  if (split.holders == 1 || options_.shapes_only) return absl::OkStatus();
  const auto first = static_cast<std::size_t>(options_.share.index - split.holder);
  const auto holders = static_cast<std::size_t>(split.holders);
  std::vector<std::vector<float>> others(holders);
  std::vector<std::span<const std::byte>> to_ranks(num_ranks());
  std::vector<std::span<std::byte>> from_ranks(num_ranks());
  std::vector<float*> sums(holders);
  for (std::size_t holder = 0; holder < holders; ++holder) {
    sums[holder] = values.data();
    if (std::cmp_equal(holder, split.holder)) continue;
    others[holder].resize(values.size());
    sums[holder] = others[holder].data();
    to_ranks[first + holder] = std::as_bytes(values);
    from_ranks[first + holder] = std::as_writable_bytes(std::span(others[holder]));
  }
  RETURN_IF_ERROR(options_.group->Pass(step_, to_ranks, from_ranks));
  const std::int64_t count = std::ssize(values);
  for (std::size_t width = 1; width < holders; width *= 2) {
    for (std::size_t i = 0; i < holders; i += 2 * width) Add(sums[i], sums[i + width], count);
  }
  if (sums[0] != values.data()) std::copy_n(sums[0], count, values.data());
  return absl::OkStatus();
}

}  // namespace takt::train
