// SPDX-License-Identifier: Apache-2.0
#include "worker/train/spread_meetings.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "common/base/status.h"
#include "common/model/tree_sum.h"
#include "common/model/vocabulary.h"
#include "worker/train/spread_head.h"

namespace takt::train {

SpreadMeetings::SpreadMeetings(Options options) : options_(std::move(options)) {
  TAKT_CHECK(options_.group->size() == std::ssize(options_.ends));
}

absl::Status SpreadMeetings::Share(StepId step, std::span<std::byte> norm) const {
  return options_.group->Broadcast(step, options_.root, norm);
}

absl::Status SpreadMeetings::Gather(StepId step, backend::SoftmaxPart* parts) const {
  std::vector<std::span<std::byte>> by_rank;
  for (PpRank rank(0); rank.value() < options_.group->size(); ++rank) {
    const auto [first, last] = mesh::BlocksOf(options_.ends, rank);
    const std::span<backend::SoftmaxPart> its(
        parts + first * options_.rows, static_cast<std::size_t>((last - first) * options_.rows));
    by_rank.push_back(std::as_writable_bytes(its));
  }
  return options_.group->AllGather(step, by_rank);
}

absl::Status SpreadMeetings::Return(StepId step, Buffers mine, Buffers sums) const {
  transport::Collective& group = *options_.group;
  const bool is_root = group.index() == options_.root;
  const auto floats = [&](int i) {
    return reinterpret_cast<float*>(sums[static_cast<std::size_t>(i)].data());
  };
  const auto add = [&](int i) {
    float* const into = floats(i);
    const float* const other = floats(i + 1);
    for (std::int64_t k = 0; k < options_.rows * options_.columns; ++k) into[k] += other[k];
    return absl::OkStatus();
  };
  model::TreeSum sum;
  std::vector<std::span<std::byte>> received(static_cast<std::size_t>(group.size()));
  for (int rank = 0; rank < group.size(); ++rank) {
    const bool own = rank == group.index();
    const PartialSums passed = PartialSumsOf(mesh::BlocksOf(options_.ends, PpRank(rank)));
    for (std::size_t i = 0; i < passed.parts.size(); ++i) {
      if (rank != options_.root) {
        std::span<std::byte>& place = received[static_cast<std::size_t>(rank)];
        if (is_root) place = sums[static_cast<std::size_t>(sum.size())];
        RETURN_IF_ERROR(
            group.SendTo(step, options_.root, own ? mine[i] : std::span<std::byte>(), received));
        place = {};
      } else if (is_root) {
        std::ranges::copy(mine[i], sums[static_cast<std::size_t>(sum.size())].begin());
      }
      if (is_root) RETURN_IF_ERROR(sum.Push(passed.parts[i], add));
    }
  }
  return is_root ? sum.Finish(add) : absl::OkStatus();
}

absl::Status SpreadMeetings::Rows(StepId step, const std::int32_t* tokens, const float* table,
                                  std::span<float> scratch, float* output) const {
  transport::Collective& group = *options_.group;
  const std::int64_t columns = options_.columns;
  const auto positions = PositionsByOwner(tokens);
  const std::vector<std::span<float>> parts = Cut(scratch, positions);
  const auto index = static_cast<std::size_t>(group.index());
  const std::int64_t first_word = words().first;
  float* next = parts[index].data();
  for (const std::int64_t position : positions[index]) {
    std::copy_n(table + (tokens[position] - first_word) * columns, columns, next);
    next += columns;
  }
  std::vector<std::span<std::byte>> received;
  for (const std::span<float>& part : parts) received.push_back(std::as_writable_bytes(part));
  RETURN_IF_ERROR(group.SendTo(step, options_.first, std::as_bytes(parts[index]), received));
  if (group.index() != options_.first) return absl::OkStatus();
  for (std::size_t rank = 0; rank < parts.size(); ++rank) {
    const float* row = parts[rank].data();
    for (const std::int64_t position : positions[rank]) {
      std::copy_n(row, columns, output + position * columns);
      row += columns;
    }
  }
  return absl::OkStatus();
}

absl::Status SpreadMeetings::RowsGrad(StepId step, const std::int32_t* tokens,
                                      const float* d_output, std::span<float> scratch,
                                      float* gradient, bool accumulate) const {
  transport::Collective& group = *options_.group;
  const std::int64_t columns = options_.columns;
  const auto positions = PositionsByOwner(tokens);
  const std::vector<std::span<float>> parts = Cut(scratch, positions);
  std::vector<std::span<const std::byte>> sent(parts.size());
  std::vector<std::span<std::byte>> received(parts.size());
  const auto index = static_cast<std::size_t>(group.index());
  if (group.index() == options_.first) {
    for (std::size_t rank = 0; rank < parts.size(); ++rank) {
      float* next = parts[rank].data();
      for (const std::int64_t position : positions[rank]) {
        std::copy_n(d_output + position * columns, columns, next);
        next += columns;
      }
      sent[rank] = std::as_bytes(parts[rank]);
    }
  } else {
    received[static_cast<std::size_t>(options_.first)] = std::as_writable_bytes(parts[index]);
  }
  RETURN_IF_ERROR(group.Pass(step, sent, received));
  const auto [first_word, num_words] = words();
  if (!accumulate) std::fill_n(gradient, num_words * columns, 0.0F);
  const float* row = parts[index].data();
  for (const std::int64_t position : positions[index]) {
    float* const sum = gradient + (tokens[position] - first_word) * columns;
    for (std::int64_t c = 0; c < columns; ++c) sum[c] += row[c];
    row += columns;
  }
  return absl::OkStatus();
}

std::vector<std::vector<std::int64_t>> SpreadMeetings::PositionsByOwner(
    const std::int32_t* tokens) const {
  std::vector<std::vector<std::int64_t>> positions(options_.ends.size());
  for (std::int64_t i = 0; i < options_.rows; ++i) {
    const auto block = static_cast<int>(tokens[i] / model::kVocabularyBlock);
    const auto owner = std::ranges::upper_bound(options_.ends, block) - options_.ends.begin();
    positions[static_cast<std::size_t>(owner)].push_back(i);
  }
  return positions;
}

std::vector<std::span<float>> SpreadMeetings::Cut(
    std::span<float> scratch, const std::vector<std::vector<std::int64_t>>& positions) const {
  std::vector<std::span<float>> parts;
  for (const std::vector<std::int64_t>& its : positions) {
    const std::size_t count = its.size() * static_cast<std::size_t>(options_.columns);
    parts.push_back(scratch.first(count));
    scratch = scratch.subspan(count);
  }
  return parts;
}

}  // namespace takt::train
