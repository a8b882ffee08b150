// SPDX-License-Identifier: Apache-2.0
#include "worker/train/tensor_meetings.h"

#include <algorithm>
#include <cstddef>
#include <iterator>

#include "common/base/status.h"
#include "common/model/split_layers.h"

namespace takt::train {
namespace {

using model::PartKind;

}  // namespace

absl::StatusOr<std::unique_ptr<TensorMeetings>> TensorMeetings::Create(const Options& options) {
  auto meetings = std::unique_ptr<TensorMeetings>(new TensorMeetings(options));
  if (options.group == nullptr) return meetings;
  ASSIGN_OR_RETURN(meetings->on_group_, GroupCalls::Create(*options.backend, *options.group));
  return meetings;
}

TensorMeetings::TensorMeetings(const Options& options) : options_(options) {
  const model::TensorShare& share = options_.share;
  TAKT_CHECK(options_.backend != nullptr);
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

absl::Status TensorMeetings::AddTo(float* sum, const float* addend, std::int64_t count) {
  return options_.backend->Run(backend::Add{.a = sum, .b = addend, .output = sum, .count = count});
}

absl::Status TensorMeetings::GatherRows(const backend::Output& tensor) {
  const auto count = static_cast<std::size_t>(rows_here() * options_.columns);
  std::vector<std::span<std::byte>> parts;
  for (std::size_t rank = 0; rank < num_ranks(); ++rank) {
    parts.push_back(tensor.bf16 == nullptr
                        ? std::as_writable_bytes(std::span(tensor.f32 + rank * count, count))
                        : std::as_writable_bytes(std::span(tensor.bf16 + rank * count, count)));
  }
  return Meet(PartKind::kGather, [&] {
    return on_group_->Make([&] { return options_.group->AllGather(step_, parts); });
  });
}

absl::Status TensorMeetings::ScatterRows(float* partial) {
  const auto count = static_cast<std::size_t>(rows_here() * options_.columns);
  std::vector<std::span<float>> parts;
  for (std::size_t rank = 0; rank < num_ranks(); ++rank)
    parts.emplace_back(partial + rank * count, count);
  return Meet(PartKind::kScatter, [&] {
    return on_group_->Make([&] { return options_.group->ReduceScatterTree(step_, parts); });
  });
}

absl::Status TensorMeetings::GatherSoftmax(backend::SoftmaxPart* parts) {
  std::vector<std::span<std::byte>> by_rank;
  for (std::size_t rank = 0; rank < num_ranks(); ++rank) {
    const int first = rank == 0 ? 0 : ends_[rank - 1];
    const std::span<backend::SoftmaxPart> its(
        parts + first * options_.rows,
        static_cast<std::size_t>((ends_[rank] - first) * options_.rows));
    by_rank.push_back(std::as_writable_bytes(its));
  }
  return Meet(PartKind::kGather, [&] {
    return on_group_->Make([&] { return options_.group->AllGather(step_, by_rank); });
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
  const auto pass = [&]() -> absl::Status {
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
  };
  RETURN_IF_ERROR(Meet(PartKind::kScatter, [&] { return on_group_->Make(pass); }));
  std::vector<float*> stack;
  const auto add = [&](int i) -> absl::Status {
    RETURN_IF_ERROR(
        AddTo(stack[static_cast<std::size_t>(i)], stack[static_cast<std::size_t>(i) + 1], count));
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

absl::Status TensorMeetings::SumOverHolders(const model::Split& split, std::span<float> values,
                                            float* scratch) {
  const auto most = static_cast<std::size_t>(rows_here() * options_.columns);
  const int first = options_.share.index - split.holder;
  // Each rank has the sum of `distance` holders and adds that of as many others. Both get the same
  // bits, because a + b is b + a.
  for (int distance = 1; distance < split.holders; distance *= 2) {
    const auto other = static_cast<std::size_t>(first + (split.holder ^ distance));
    for (std::span<float> left = values; !left.empty();) {
      const std::span<float> sums = left.first(std::min(most, left.size()));
      left = left.subspan(sums.size());
      std::vector<std::span<const std::byte>> to_ranks(num_ranks());
      std::vector<std::span<std::byte>> from_ranks(num_ranks());
      to_ranks[other] = std::as_bytes(sums);
      from_ranks[other] = std::as_writable_bytes(std::span(scratch, sums.size()));
      RETURN_IF_ERROR(
          on_group_->Make([&] { return options_.group->Pass(step_, to_ranks, from_ranks); }));
      RETURN_IF_ERROR(AddTo(sums.data(), scratch, std::ssize(sums)));
    }
  }
  return absl::OkStatus();
}

}  // namespace takt::train
