// SPDX-License-Identifier: Apache-2.0
#include "worker/train/context_meetings.h"

#include <cstdint>
#include <functional>
#include <vector>

#include "common/base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/train/group_testing.h"

namespace takt::train {
namespace {

using ::testing::ElementsAre;

constexpr int kRanks = 3;
constexpr std::int64_t kBatch = 2, kContext = 12, kColumns = 2;
constexpr std::int64_t kLength = kContext / (2 * kRanks);  // tokens of a piece

// Calls `body` for each rank, on a thread of its own.
void ForAll(std::int64_t window, const std::function<absl::Status(ContextMeetings&)>& body) {
  ForAllRanks(kRanks, [&](transport::Collective& group) {
    engine::PartCursor cursor;
    ContextMeetings meetings(ContextMeetings::Options{.group = &group,
                                                      .cursor = &cursor,
                                                      .batch = kBatch,
                                                      .context = kContext,
                                                      .columns = kColumns,
                                                      .window = window});
    meetings.BeginStep(StepId(1));
    return body(meetings);
  });
}

float ValueAt(std::int64_t token, std::int64_t column) {
  return static_cast<float>(10 * token + column);
}

// Returns rows that are `stride` apart, with the value of each of the rank's tokens.
std::vector<float> RowsOf(const model::ContextShare& share, std::int64_t stride) {
  std::vector<float> rows(static_cast<std::size_t>(kBatch * kContext / kRanks * stride), -1);
  ForEachRunOfTokens(
      share, kBatch, kContext, [&](std::int64_t whole, std::int64_t here, std::int64_t count) {
        for (std::int64_t i = 0; i < count; ++i) {
          for (std::int64_t c = 0; c < kColumns; ++c) {
            rows[static_cast<std::size_t>((here + i) * stride + c)] = ValueAt(whole + i, c);
          }
        }
      });
  return rows;
}

TEST(ContextMeetings, GatherTheKeysThatARankSees) {
  for (const std::int64_t window : {0, 2}) {
    ForAll(window, [window](ContextMeetings& meetings) {
      constexpr std::int64_t kStride = 5;
      const std::vector<float> mine = RowsOf(meetings.share(), kStride);
      std::vector<float> keys(kBatch * kContext * kColumns, -1), values = keys;
      const absl::Status status =
          meetings.GatherKeys({mine.data(), mine.data(), kStride}, {keys.data(), values.data()});
      EXPECT_EQ(keys, values);
      for (std::int64_t token = 0; token < kBatch * kContext; ++token) {
        const auto piece = static_cast<int>(token % kContext / kLength);
        const bool seen = model::SeesPiece(meetings.share(), piece, kLength, window);
        for (std::int64_t c = 0; c < kColumns; ++c) {
          EXPECT_EQ(keys[static_cast<std::size_t>(token * kColumns + c)],
                    seen ? ValueAt(token, c) : 0)
              << "token " << token << ", rank " << meetings.share().index;
        }
      }
      return status;
    });
  }
}

// In another order the sum would be another one.
TEST(ContextMeetings, SumGradientsInTheOrderOfRanks) {
  ForAll(/*window=*/0, [](ContextMeetings& meetings) {
    constexpr float kValues[] = {1e8F, -1e8F, 1.0F};
    constexpr std::int64_t kStride = 3;
    std::vector<float> keys(kBatch * kContext * kColumns, kValues[meetings.share().index]);
    std::vector<float> values = keys, received = keys;
    const std::int64_t here = kBatch * kContext / kRanks;
    std::vector<float> d_keys(static_cast<std::size_t>(here * kStride), -7), d_values = d_keys;
    const absl::Status status = meetings.SumKeyGradients(
        {keys.data(), values.data()}, received.data(), {d_keys.data(), d_values.data(), kStride});
    EXPECT_EQ(d_keys, d_values);
    ForEachRunOfTokens(meetings.share(), kBatch, kContext,
                       [&](std::int64_t whole, std::int64_t row, std::int64_t count) {
                         const auto piece = static_cast<int>(whole % kContext / kLength);
                         float sum = 0;
                         for (int rank = 0; rank < kRanks; ++rank) {
                           if (model::SeesPiece({.size = kRanks, .index = rank}, piece, kLength, 0))
                             sum += kValues[rank];
                         }
                         for (std::int64_t i = 0; i < count * kStride; ++i) {
                           EXPECT_EQ(d_keys[static_cast<std::size_t>(row * kStride + i)],
                                     i % kStride < kColumns ? sum : -7.0F);
                         }
                       });
    return status;
  });
}

TEST(PickTokens, TakesAnEarlyAndALatePieceOfEachSequence) {
  std::vector<std::int32_t> whole(16), here(8);
  for (std::size_t i = 0; i < whole.size(); ++i) whole[i] = static_cast<std::int32_t>(i);
  PickTokens({.size = 2, .index = 1}, 8, whole, here);
  EXPECT_THAT(here, ElementsAre(2, 3, 4, 5, 10, 11, 12, 13));
  PickTokens({.size = 2, .index = 0}, 8, whole, here);
  EXPECT_THAT(here, ElementsAre(0, 1, 6, 7, 8, 9, 14, 15));
}

// A row minus its start is the token's position in its document.
TEST(PickStarts, KeepsPositionsInDocuments) {
  const std::vector<std::int32_t> whole = {0, 0, 0, 3, 3, 3, 6, 6};
  std::vector<std::int32_t> here(4);
  PickStarts({.size = 2, .index = 0}, 8, whole, here);
  EXPECT_THAT(here, ElementsAre(0, 0, 2, 2));
  const std::vector<std::int32_t> one(8, 0);
  PickStarts({.size = 2, .index = 0}, 8, one, here);
  EXPECT_THAT(here, ElementsAre(0, 0, -4, -4));
  PickStarts({.size = 2, .index = 1}, 8, one, here);
  EXPECT_THAT(here, ElementsAre(-2, -2, -2, -2));
  PickStarts({.size = 2, .index = 1}, 8, {}, {});
}

}  // namespace
}  // namespace takt::train
