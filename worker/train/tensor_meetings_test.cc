// SPDX-License-Identifier: Apache-2.0
#include "worker/train/tensor_meetings.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "common/base/status.h"
#include "common/model/split_layers.h"
#include "common/model/vocabulary.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/train/group_testing.h"

namespace takt::train {
namespace {

using ::testing::ElementsAre;

constexpr int kRanks = 4;
constexpr std::int64_t kRows = 8, kColumns = 2;
constexpr std::int64_t kWords = 6 * model::kVocabularyBlock;

model::TensorShare ShareOf(int rank) { return {.size = kRanks, .index = rank, .leaves = kRanks}; }

// Calls `body` for each of four ranks, on a thread of its own.
void ForAll(const std::function<absl::Status(TensorMeetings&)>& body) {
  ForAllRanks(kRanks, [&](transport::Collective& group) {
    engine::PartCursor cursor;
    TensorMeetings meetings(TensorMeetings::Options{.group = &group,
                                                    .cursor = &cursor,
                                                    .share = ShareOf(group.index()),
                                                    .rows = kRows,
                                                    .columns = kColumns,
                                                    .vocab = kWords});
    meetings.BeginStep(StepId(1));
    return body(meetings);
  });
}

TEST(TensorMeetings, GatherTheRowsOfAllRanks) {
  ForAll([](TensorMeetings& meetings) {
    std::vector<float> rows(kRows * kColumns, -1);
    for (std::int64_t i = 0; i < meetings.rows_here() * kColumns; ++i) {
      const std::int64_t element = meetings.first_row() * kColumns + i;
      rows[static_cast<std::size_t>(element)] = static_cast<float>(element);
    }
    const absl::Status status = meetings.GatherRows(rows.data());
    for (std::size_t i = 0; i < rows.size(); ++i) EXPECT_EQ(rows[i], static_cast<float>(i));
    return status;
  });
}

// In another order the sum would be 1 or 2.
TEST(TensorMeetings, ScatterSumsAlongTheTree) {
  ForAll([](TensorMeetings& meetings) {
    constexpr float kValues[] = {1.0F, 1e8F, -1e8F, 1.0F};
    std::vector<float> rows(kRows * kColumns, kValues[meetings.share().index]);
    const absl::Status status = meetings.ScatterRows(rows.data());
    const std::int64_t first = meetings.first_row() * kColumns;
    for (std::int64_t i = 0; i < meetings.rows_here() * kColumns; ++i)
      EXPECT_EQ(rows[static_cast<std::size_t>(first + i)], 0.0F);
    return status;
  });
}

// The blocks of words are dealt 1, 2, 1, 2. The row of word w is (w, -w).
TEST(TensorMeetings, PassTheRowsOfWordsToTheirTokens) {
  ForAll([](TensorMeetings& meetings) {
    const auto [first, last] = model::BlocksOf(meetings.share(), kWords);
    model::Parameter parameter{.name = "table", .shape = {kWords, kColumns}, .by_word = true};
    std::vector<float> weight, gradient;
    const std::int64_t first_row = first * model::kVocabularyBlock;
    const std::int64_t words = (last - first) * model::kVocabularyBlock;
    for (std::int64_t word = first_row; word < first_row + words; ++word) {
      weight.push_back(static_cast<float>(word));
      weight.push_back(-static_cast<float>(word));
    }
    gradient.resize(weight.size(), 7);
    const ParameterRef table{.parameter = &parameter,
                             .first_row = first_row,
                             .rows = words,
                             .weight = weight.data(),
                             .gradient = gradient.data()};
    constexpr std::int32_t kTokens[kRows] = {5, 24000, 5, 9000, 13000, 4096, 24575, 4095};
    std::vector<float> sent(kRows * kColumns), received(kRows * kColumns), output(kRows);
    RETURN_IF_ERROR(
        meetings.TokenRows(kTokens, &table, sent.data(), received.data(), output.data()));
    for (std::int64_t i = 0; i < meetings.rows_here(); ++i) {
      const auto token = static_cast<float>(kTokens[meetings.first_row() + i]);
      EXPECT_EQ(output[static_cast<std::size_t>(2 * i)], token);
      EXPECT_EQ(output[static_cast<std::size_t>(2 * i + 1)], -token);
    }
    const std::vector<float> d_output(kRows * kColumns, 1);
    meetings.AddTokenGradients(kTokens, d_output.data(), table, /*accumulate=*/false);
    if (first == 0) {
      EXPECT_EQ(gradient[2 * 5], 2.0F);  // word 5 stands twice
    }
    EXPECT_EQ(gradient[2 * 7], 0.0F);
    return absl::OkStatus();
  });
}

// Six blocks with the values 1, 2, 4, 8, 16 and 32. Their tree is ((0+1)+(2+3)) + (4+5).
TEST(TensorMeetings, AddWhatRunsOfBlocksLeave) {
  ForAll([](TensorMeetings& meetings) {
    const auto [first, last] = model::BlocksOf(meetings.share(), kWords);
    const model::PartialSums sums = model::PartialSumsOf(first, last);
    std::vector<std::vector<float>> buffers;
    std::vector<float*> mine;
    for (const model::TreeSum::Part& part : sums.parts) {
      float value = 0;
      for (int block = part.first; block < part.first + part.size; ++block)
        value += static_cast<float>(1 << block);
      buffers.emplace_back(kRows * kColumns, value);
    }
    for (std::vector<float>& buffer : buffers) mine.push_back(buffer.data());
    std::vector<float> received(6 * kRows * kColumns);
    ASSIGN_OR_RETURN(const float* const sum, meetings.ScatterSums(mine, received.data()));
    for (std::int64_t i = 0; i < meetings.rows_here() * kColumns; ++i) EXPECT_EQ(sum[i], 63.0F);
    return absl::OkStatus();
  });
}

TEST(TensorMeetings, SumOverTheRanksThatHoldAPiece) {
  ForAll([](TensorMeetings& meetings) {
    const int rank = meetings.share().index;
    std::vector<float> values = {static_cast<float>(rank), 1};
    const absl::Status status = meetings.Exchange([&] {
      return meetings.SumOverHolders(model::SplitOf(/*pieces=*/2, meetings.share()), values);
    });
    EXPECT_THAT(values, ElementsAre(rank < 2 ? 1.0F : 5.0F, 2.0F));
    return status;
  });
}

TEST(TensorMeetings, OfOneRankPassNothing) {
  TensorMeetings meetings(TensorMeetings::Options{
      .share = {.size = 1, .leaves = 4}, .rows = kRows, .columns = kColumns, .vocab = kWords});
  std::vector<float> rows(kRows * kColumns, 3);
  EXPECT_TRUE(meetings.GatherRows(rows.data()).ok());
  EXPECT_TRUE(meetings.ScatterRows(rows.data()).ok());
  EXPECT_EQ(rows, std::vector<float>(kRows * kColumns, 3));
  bool ran = false;
  EXPECT_TRUE(meetings
                  .Exchange([&] {
                    ran = true;
                    return absl::OkStatus();
                  })
                  .ok());
  EXPECT_TRUE(ran);
}

}  // namespace
}  // namespace takt::train
