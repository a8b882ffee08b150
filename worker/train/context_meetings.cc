// SPDX-License-Identifier: Apache-2.0
#include "worker/train/context_meetings.h"

#include <algorithm>
#include <cstddef>
#include <iterator>

#include "common/base/status.h"

namespace takt::train {

ContextMeetings::ContextMeetings(const Options& options)
    : options_(options),
      share_{.size = options.group->size(), .index = options.group->index()},
      length_(options.context / (2 * options.group->size())),
      starts_(static_cast<std::size_t>(options.batch * options.context / options.group->size())) {
  TAKT_CHECK(share_.size > 1 && options_.cursor != nullptr);
  const std::vector<std::int32_t> zeros(
      static_cast<std::size_t>(options_.batch * options_.context));
  PickStarts(share_, options_.context, zeros, starts_);
}

absl::Status ContextMeetings::GatherKeys(const KeysHere& mine, const KeysOfAll& all) {
  return Meet([&](const Place& at) -> absl::Status {
    RETURN_IF_ERROR(Gather(at, mine.keys, mine.stride, all.keys));
    return Gather(at, mine.values, mine.stride, all.values);
  });
}

absl::Status ContextMeetings::SumKeyGradients(const KeysOfAll& partial, float* received,
                                              const KeyGradsHere& mine) {
  return Meet([&](const Place& at) -> absl::Status {
    RETURN_IF_ERROR(Sum(at, partial.keys, received, mine.keys, mine.stride));
    return Sum(at, partial.values, received, mine.values, mine.stride);
  });
}

absl::Status ContextMeetings::Meet(absl::FunctionRef<absl::Status(const Place&)> pass) {
  return options_.cursor->Meet(model::PartKind::kExchange, model::PartGroup::kContext,
                               [&]() -> absl::Status {
                                 if (options_.shapes_only) return absl::OkStatus();
                                 for (std::int64_t b = 0; b < options_.batch; ++b) {
                                   RETURN_IF_ERROR(pass({.sequence = b, .half = 0}));
                                   RETURN_IF_ERROR(pass({.sequence = b, .half = 1}));
                                 }
                                 return absl::OkStatus();
                               });
}

int ContextMeetings::PieceOf(int rank, int half) const {
  return model::ContextShare{.size = share_.size, .index = rank}.PieceOf(half);
}

bool ContextMeetings::Sees(int rank, int piece) const {
  return model::SeesPiece({.size = share_.size, .index = rank}, piece, length_, options_.window);
}

std::span<float> ContextMeetings::Piece(float* all, std::int64_t sequence, int piece) const {
  const std::int64_t row = sequence * options_.context + piece * length_;
  return {all + row * options_.columns, static_cast<std::size_t>(length_ * options_.columns)};
}

absl::Status ContextMeetings::Gather(const Place& at, const float* mine, std::int64_t stride,
                                     float* all) const {
  const int own_piece = PieceOf(share_.index, at.half);
  const std::span<float> own = Piece(all, at.sequence, own_piece);
  for (std::int64_t i = 0; i < length_; ++i)
    std::copy_n(mine + (RowOf(at) + i) * stride, options_.columns,
                own.begin() + i * options_.columns);
  const auto ranks = static_cast<std::size_t>(share_.size);
  std::vector<std::span<const std::byte>> sent(ranks);
  std::vector<std::span<std::byte>> received(ranks);
  for (int rank = 0; rank < share_.size; ++rank) {
    if (rank == share_.index) continue;
    const auto place = static_cast<std::size_t>(rank);
    const int piece = PieceOf(rank, at.half);
    const std::span<float> its = Piece(all, at.sequence, piece);
    if (Sees(rank, own_piece)) sent[place] = std::as_bytes(own);
    if (Sees(share_.index, piece)) {
      received[place] = std::as_writable_bytes(its);
    } else {
      std::ranges::fill(its, 0.0F);  // kernels multiply by what masks hide
    }
  }
  return options_.group->Pass(step_, sent, received);
}

absl::Status ContextMeetings::Sum(const Place& at, float* partial, float* received, float* mine,
                                  std::int64_t stride) const {
  const int own_piece = PieceOf(share_.index, at.half);
  const auto ranks = static_cast<std::size_t>(share_.size);
  std::vector<std::span<const std::byte>> sent(ranks);
  std::vector<std::span<std::byte>> from_ranks(ranks);
  std::vector<std::span<const float>> addends;  // by ascending rank
  for (int rank = 0; rank < share_.size; ++rank) {
    if (rank == share_.index) {
      addends.emplace_back(Piece(partial, at.sequence, own_piece));
      continue;
    }
    const auto place = static_cast<std::size_t>(rank);
    const int piece = PieceOf(rank, at.half);
    if (Sees(share_.index, piece)) sent[place] = std::as_bytes(Piece(partial, at.sequence, piece));
    if (!Sees(rank, own_piece)) continue;
    const std::span<float> its(received, static_cast<std::size_t>(length_ * options_.columns));
    received += std::ssize(its);
    from_ranks[place] = std::as_writable_bytes(its);
    addends.emplace_back(its);
  }
  RETURN_IF_ERROR(options_.group->Pass(step_, sent, from_ranks));
  for (std::int64_t i = 0; i < length_; ++i) {
    float* const row = mine + (RowOf(at) + i) * stride;
    const std::int64_t first = i * options_.columns;
    std::copy_n(addends.front().begin() + first, options_.columns, row);
    for (std::size_t a = 1; a < addends.size(); ++a) {
      const float* const addend = addends[a].data() + first;
      for (std::int64_t c = 0; c < options_.columns; ++c) row[c] += addend[c];
    }
  }
  return absl::OkStatus();
}

void ForEachRunOfTokens(
    const model::ContextShare& share, std::int64_t batch, std::int64_t context,
    absl::FunctionRef<void(std::int64_t whole, std::int64_t here, std::int64_t count)> visit) {
  const std::int64_t length = context / (2 * share.size);
  for (std::int64_t b = 0; b < batch; ++b) {
    for (const int half : {0, 1})
      visit(b * context + share.PieceOf(half) * length, (2 * b + half) * length, length);
  }
}

void PickTokens(const model::ContextShare& share, std::int64_t context,
                std::span<const std::int32_t> whole, std::span<std::int32_t> here) {
  ForEachRunOfTokens(share, std::ssize(whole) / context, context,
                     [&](std::int64_t from, std::int64_t to, std::int64_t count) {
                       std::copy_n(whole.begin() + from, count, here.begin() + to);
                     });
}

void PickStarts(const model::ContextShare& share, std::int64_t context,
                std::span<const std::int32_t> whole, std::span<std::int32_t> here) {
  ForEachRunOfTokens(share, std::ssize(whole) / context, context,
                     [&](std::int64_t from, std::int64_t to, std::int64_t count) {
                       // A row stands so many rows before its token's position.
                       const std::int64_t shift = from % context - to % (context / share.size);
                       for (std::int64_t i = 0; i < count; ++i) {
                         here[static_cast<std::size_t>(to + i)] = static_cast<std::int32_t>(
                             whole[static_cast<std::size_t>(from + i)] - shift);
                       }
                     });
}

}  // namespace takt::train
