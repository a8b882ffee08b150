// SPDX-License-Identifier: Apache-2.0
#include "common/layout/vocabulary_layout.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/layout/packed_matrix.h"
#include "common/layout/parameter_layout.h"
#include "common/layout/rank_layout.h"
#include "common/layout/testing/jobs.h"
#include "common/mesh/vocabulary_split.h"
#include "common/model/vocabulary.h"
#include "gtest/gtest.h"

namespace takt::layout {
namespace {

using model::Family;
using model::Precision;
using model::Recompute;

// The sums that T leaves on each rank, and the most that its stack holds.
struct Spread {
  mesh::VocabularyEnds ends;
  std::vector<int> left, most;
};

std::vector<Spread> Spreads() {
  return {{.ends = {2, 6}, .left = {1, 2}, .most = {2, 3}},
          {.ends = {1, 1, 6}, .left = {1, 0, 3}, .most = {1, 0, 4}},
          {.ends = {0, 4, 4, 6}, .left = {0, 1, 0, 1}, .most = {0, 3, 0, 2}}};
}

// Returns the bytes of all tensors of this role.
std::int64_t BytesOf(const Section& section, Role role) {
  std::int64_t bytes = 0;
  for (const Tensor& tensor : section.tensors) {
    if (tensor.role == role) bytes += tensor.bytes;
  }
  return bytes;
}

TEST(SpreadVocabularyLayout, TakesTheMemoryOfTheFormulas) {
  constexpr std::int64_t kN = 32, kC = 16, kD = 6;  // all tensors are whole cache lines
  for (const Spread& spread : Spreads()) {
    const int ranks = static_cast<int>(spread.ends.size());
    const Job job({.config = WideVocabulary(Family::kGpt2), .ranks = ranks, .ends = spread.ends});
    for (int rank = 0; rank < ranks; ++rank) {
      SCOPED_TRACE(absl::StrCat("rank ", rank, " of ", ranks));
      const RankLayout layout = job.LayoutOf(rank);
      const std::int64_t words = mesh::WordsOf(spread.ends, PpRank(rank), kWords).words;
      const std::int64_t sum = 4 * kN * kC;
      const std::map<program::SlotKind, std::int64_t> expected = {
          {program::SlotKind::kHeadInput, sum},
          {program::SlotKind::kVocabularyStash, 4 * kN * words + 16 * kN * (kD + 1)},
          {program::SlotKind::kPartialGrad, spread.left[rank] * sum},
          {program::SlotKind::kHeadGrad, sum}};
      for (const Tensor& slot : layout.slots.tensors) {
        if (expected.contains(slot.slot_kind)) {
          EXPECT_EQ(slot.bytes, expected.at(slot.slot_kind)) << slot.slot.value();
        }
      }
      EXPECT_EQ(layout.vocabulary->scratch_sums, spread.most[rank] - spread.left[rank]);
      EXPECT_GE(BytesOf(layout.shared, Role::kLayerScratch), layout.vocabulary->scratch_sums * sum);
      EXPECT_EQ(BytesOf(layout.shared, Role::kMeetingScratch), sum);
    }
  }
}

TEST(SpreadVocabularyLayout, GivesOneRankAllWords) {
  const model::Model model = *model::BuildModel(WideVocabulary(Family::kGpt2), 2);
  const VocabularyLayout layout = LayOutVocabulary(model, {6}, PpRank(0), /*root=*/true);
  EXPECT_EQ(layout.stash_bytes(), 4 * 32 * kWords + 16 * 32 * 7);
  EXPECT_EQ(layout.partial_grad_bytes(), 2 * 2048);
  EXPECT_EQ(layout.scratch_sums, 1);
  EXPECT_EQ(layout.meeting_sums, 1);
  EXPECT_EQ(BytesOf(LayOutRows(model, layout.words), Role::kWeight), 4 * 16 * kWords);
}

// Forwards that read foreseen weights read the rows of the embedding alone.
TEST(SpreadVocabularyLayout, HasRoomForForeseenRowsOfTheEmbedding) {
  for (const Family family : {Family::kGpt2, Family::kLlama}) {
    const std::int64_t tables = family == Family::kLlama ? 2 : 1;
    const model::Model model =
        *model::BuildModel(WideVocabulary(family), 2, {Precision::kBf16, Precision::kBf16});
    const mesh::WordRun words = LayOutVocabulary(model, {4, 6}, PpRank(0), /*root=*/false).words;
    const std::int64_t table = 4 * 16 * words.words;
    const Section plain = LayOutRows(model, words);
    const Section foreseen = LayOutRows(model, words, {}, /*foresees=*/true);
    EXPECT_EQ(BytesOf(plain, Role::kWeight), tables * table);
    EXPECT_EQ(BytesOf(foreseen, Role::kWeight), (tables + 1) * table);
    EXPECT_EQ(BytesOf(foreseen, Role::kPackedWeight), BytesOf(plain, Role::kPackedWeight));
    for (const Tensor& tensor : foreseen.tensors) {
      if (tensor.version == program::kForeseen) {
        EXPECT_EQ(tensor.layer, LayerId(0));
      }
    }
  }
}

TEST(SpreadVocabularyLayout, GivesTheRootRoomForTheSumsOfAllRanks) {
  model::ModelConfig config = WideVocabulary(Family::kGpt2);
  config.vocab = 7 * static_cast<int>(model::kVocabularyBlock);
  const model::Model model = *model::BuildModel(config, 2);
  EXPECT_EQ(LayOutVocabulary(model, {4, 6, 7}, PpRank(2), /*root=*/true).meeting_sums, 2);
  EXPECT_EQ(LayOutVocabulary(model, {4, 6, 7}, PpRank(2), /*root=*/false).meeting_sums, 1);
}

TEST(SpreadVocabularyLayout, ReturnsTheSizesOfProgramsAndMeetings) {
  const model::Model model = *model::BuildModel(WideVocabulary(Family::kLlama), 2);
  const program::VocabularyShape shape = ShapeOfVocabulary(model, {0, 2, 6});
  EXPECT_EQ(shape.head_input_bytes, 2048);
  EXPECT_EQ(shape.stash_bytes,
            (std::vector<std::int64_t>{3584, 3584 + 128 * 8192, 3584 + 128 * (kWords - 8192)}));
  EXPECT_EQ(shape.partial_grad_bytes, (std::vector<std::int64_t>{0, 2048, 2 * 2048}));
  EXPECT_EQ(shape.rows_bytes,
            (std::vector<std::int64_t>{0, 2048 * 8192 / kWords, 2048 * (kWords - 8192) / kWords}));
  EXPECT_EQ(shape.parts_bytes, (std::vector<std::int64_t>{0, 2 * 512, 4 * 512}));
}

TEST(SpreadVocabularyLayout, FillsUpLogitsInBf16) {
  const model::Model model =
      *model::BuildModel(WideVocabulary(Family::kGpt2), 2, {Precision::kBf16, Precision::kBf16});
  const VocabularyLayout layout = LayOutVocabulary(model, {4, 6}, PpRank(1), /*root=*/true);
  EXPECT_EQ(layout.stash_bytes(), 2 * 32 * (4096 + 128) + 16 * 32 * 7);
  EXPECT_TRUE(layout.stash[VocabularyStash::kLogits].bf16);
  EXPECT_FALSE(layout.stash[VocabularyStash::kSoftmax].bf16);
}

TEST(SpreadVocabularyLayout, SharesOutTheRowsOfEveryTable) {
  for (const Family family : {Family::kGpt2, Family::kLlama, Family::kQwen2}) {
    const std::int64_t tables = family == Family::kLlama ? 2 : 1;
    for (const Spread& spread : Spreads()) {
      const int ranks = static_cast<int>(spread.ends.size());
      const Job job({.config = WideVocabulary(family),
                     .ranks = ranks,
                     .precisions = {.products = Precision::kBf16},
                     .ends = spread.ends});
      std::map<const model::Parameter*, std::int64_t> next_row;
      for (int rank = 0; rank < ranks; ++rank) {
        SCOPED_TRACE(absl::StrCat("rank ", rank, " of ", ranks));
        const RankLayout layout = job.LayoutOf(rank);
        const std::int64_t words = mesh::WordsOf(spread.ends, PpRank(rank), kWords).words;
        const std::int64_t use = 4 * 16 * words;  // 16 columns
        EXPECT_EQ(BytesOf(layout.rows, Role::kGradient), 2 * use);
        EXPECT_EQ(BytesOf(layout.rows, Role::kWeight), tables * use);
        EXPECT_EQ(BytesOf(layout.rows, Role::kFirstMoment), tables * use);
        EXPECT_EQ(BytesOf(layout.rows, Role::kSecondMoment), tables * use);
        EXPECT_EQ(BytesOf(layout.rows, Role::kPackedWeight), 2 * PackedElements(words, 16));
        EXPECT_EQ(BytesOf(layout.rows, Role::kPackedTransposedWeight),
                  2 * PackedElements(16, words));
        EXPECT_EQ(layout.rows.allocations.empty(), words == 0);
        for (const Tensor& tensor : layout.rows.tensors) {
          EXPECT_TRUE(tensor.parameter->by_word);
          EXPECT_EQ(tensor.rows, words);
          if (tensor.role != Role::kWeight) continue;
          EXPECT_EQ(tensor.first_row, next_row[tensor.parameter]);
          next_row[tensor.parameter] += tensor.rows;
        }
        for (const Tensor& tensor : layout.parameters.tensors) {
          EXPECT_FALSE(tensor.parameter->by_word);
          EXPECT_EQ(tensor.rows, 0);
        }
      }
      EXPECT_EQ(std::ssize(next_row), tables);
      for (const auto& [table, rows] : next_row) EXPECT_EQ(rows, kWords);
    }
  }
}

TEST(SpreadVocabularyLayout, LeavesPositionsAndTheNormWithTheirStages) {
  const Job job({.config = WideVocabulary(Family::kGpt2), .ends = {3, 6}});
  const auto has = [&](int rank, std::string_view name) {
    return std::ranges::any_of(job.LayoutOf(rank).parameters.tensors, [&](const Tensor& tensor) {
      return tensor.parameter->name == name;
    });
  };
  EXPECT_TRUE(has(0, "transformer.wpe.weight"));
  EXPECT_TRUE(has(1, "transformer.ln_f.weight"));
  EXPECT_FALSE(has(0, "transformer.wte.weight"));
  EXPECT_FALSE(has(1, "transformer.wte.weight"));
}

TEST(SpreadVocabularyLayout, KeepsOfTheHeadWhatTheNormNeedsInEveryMode) {
  for (const Recompute recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
    const Job job(
        {.config = WideVocabulary(Family::kGpt2), .recompute = recompute, .ends = {3, 6}});
    const RankLayout layout = job.LayoutOf(1);
    const StageLayout& stage = layout.stages.at(StageId(1));
    const Tensor slot{.slot_kind = program::SlotKind::kStash, .bytes = stage.stash_bytes};
    std::vector<std::string_view> parts;
    for (const Tensor& tensor : TensorsInSlot(job.model, stage, slot)) {
      if (tensor.layer == LayerId(5)) parts.push_back(tensor.part);
    }
    EXPECT_EQ(parts, (std::vector<std::string_view>{"norm_stats", "norm_part"}));
    EXPECT_TRUE(stage.layers.back().scratch.empty());
  }
}

// The rows of 20 channels and the numbers of 9 tokens are no whole cache lines.
TEST(SpreadVocabularyLayout, KeepsTensorsApartAlignedAndInsideTheirAllocation) {
  for (const std::string schedule : {"1f1b", "zb-h1", "interleaved-1f1b", "zb-v"}) {
    for (const Precision precision : {Precision::kF32, Precision::kBf16}) {
      model::ModelConfig config = Gpt2(6);
      config.vocab = static_cast<int>(kWords);
      const Job job({.config = config,
                     .schedule = schedule,
                     .precisions = {precision, precision},
                     .ends = {1, 6}});
      for (const int rank : {0, 1}) ExpectSound(job.LayoutOf(rank));
    }
  }
}

TEST(SpreadVocabularyLayout, SavesEveryParameterOnce) {
  for (const Family family : {Family::kGpt2, Family::kLlama}) {
    for (const Spread& spread : Spreads()) {
      const int ranks = static_cast<int>(spread.ends.size());
      const Job job({.config = WideVocabulary(family), .ranks = ranks, .ends = spread.ends});
      std::int64_t bytes = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const RankLayout layout = LayOutRank({.model = job.model,
                                              .partition = job.partition,
                                              .program = job.programs[rank],
                                              .saves = true,
                                              .vocabulary_ends = job.ends});
        bytes += BytesOf(layout.snapshot, Role::kSnapshot);
      }
      EXPECT_EQ(bytes, 3 * 4 * job.model.num_parameters());
    }
  }
}

TEST(SpreadVocabularyLayout, PrintsRowsAndTheStashOfTheVocabulary) {
  const Job job({.config = WideVocabulary(Family::kLlama), .ends = {2, 6}});
  const std::string text = ToString(job.LayoutOf(0));
  for (const char* const line :
       {"rows, allocation 0: gradients, 524288 bytes",
        "weight of lm_head.weight, rows 0 to 8191, layer 5", ": output of the final norm\n",
        ": stash of the vocabulary\n", "scratch of a meeting",
        "each slot of the vocabulary's stash: 1052160 bytes"}) {
    EXPECT_NE(text.find(line), std::string::npos) << line << "\n" << text;
  }
}

}  // namespace
}  // namespace takt::layout
