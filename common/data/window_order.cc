// SPDX-License-Identifier: Apache-2.0
#include "common/data/window_order.h"

#include <bit>

#include "common/base/status.h"
#include "xxhash.h"

namespace takt::data {
namespace {

// The number of rounds. Four make a Feistel network of good round functions indistinguishable from
// random (Luby and Rackoff 1988). Small files leave few bits to mix, so there are more.
constexpr std::uint64_t kRounds = 6;

// Hashes little-endian words with XXH3, so that the order is the same on every machine.
std::uint64_t Round(std::uint64_t seed, std::uint64_t epoch, std::uint64_t round,
                    std::uint64_t half) {
  std::uint64_t words[] = {seed, epoch, round, half};
  if constexpr (std::endian::native == std::endian::big) {
    for (std::uint64_t& word : words) word = __builtin_bswap64(word);
  }
  return XXH3_64bits(words, sizeof(words));
}

}  // namespace

std::int64_t RowPosition(const BatchShape& shape, StepId step, DpRank dp_rank,
                         MicrobatchId microbatch, int row) {
  const std::int64_t rows_per_rank = shape.global / shape.dp_size;
  return (step.value() - 1) * shape.global + dp_rank.value() * rows_per_rank +
         std::int64_t{microbatch.value()} * shape.microbatch + row;
}

WindowOrder::WindowOrder(std::int64_t num_windows, bool shuffle, std::uint64_t seed)
    : num_windows_(num_windows),
      shuffle_(shuffle),
      seed_(seed),
      half_bits_((std::bit_width(static_cast<std::uint64_t>(num_windows - 1)) + 1) / 2) {
  TAKT_CHECK(num_windows >= 1);
}

std::int64_t WindowOrder::WindowAt(std::int64_t position) const {
  const std::int64_t index = position % num_windows_;
  return shuffle_ ? Permuted(index, position / num_windows_) : index;
}

// A Feistel network permutes 0 .. 4^half_bits_-1; following it from an index until it lands below
// num_windows_ again permutes those (cycle walking, Black and Rogaway 2002). It lands after less
// than 4 tries on average, as 4^half_bits_ < 4 * num_windows_.
std::int64_t WindowOrder::Permuted(std::int64_t index, std::int64_t epoch) const {
  const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
  auto value = static_cast<std::uint64_t>(index);
  do {
    std::uint64_t left = value >> half_bits_, right = value & mask;
    for (std::uint64_t round = 0; round < kRounds; ++round) {
      const std::uint64_t mixed =
          left ^ (Round(seed_, static_cast<std::uint64_t>(epoch), round, right) & mask);
      left = right;
      right = mixed;
    }
    value = left << half_bits_ | right;
  } while (value >= static_cast<std::uint64_t>(num_windows_));
  return static_cast<std::int64_t>(value);
}

}  // namespace takt::data
