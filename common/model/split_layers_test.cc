// SPDX-License-Identifier: Apache-2.0
#include "common/model/split_layers.h"

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "common/model/stash.h"
#include "common/model/vocabulary.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::model {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

ModelConfig Gpt2() {
  return {.layers = 2,
          .hidden = 24,
          .heads = 4,
          .kv_heads = 4,
          .inner = 40,
          .context = 16,
          .positions = 16,
          .vocab = 2 * static_cast<int>(kVocabularyBlock) + 10};
}

ModelConfig Llama(Family family, int kv_heads) {
  ModelConfig config = Gpt2();
  config.family = family;
  config.kv_heads = kv_heads;
  config.head_size = 6;
  config.tied_head = false;
  return config;
}

Model Built(const ModelConfig& config, const TensorShare& share) {
  return BuildModel(config, /*microbatch=*/2, {}, share).value();
}

std::vector<ElementRun> RunsOf(const Parameter& parameter) {
  std::vector<ElementRun> runs;
  EXPECT_TRUE(ForEachRun(parameter, [&](const ElementRun& run) {
                runs.push_back(run);
                return absl::OkStatus();
              }).ok());
  return runs;
}

TEST(SplitOfParameter, SharesPiecesAmongLeaves) {
  EXPECT_EQ(SplitOf(8, {.size = 4, .index = 1, .leaves = 8}),
            (Split{.pieces = 8, .first = 2, .count = 2}));
  // Two leaves use a piece, and both are on one rank.
  EXPECT_EQ(SplitOf(2, {.size = 2, .index = 1, .leaves = 4}),
            (Split{.pieces = 2, .first = 1, .summed = true, .gradients = 2}));
  // Four leaves use a piece, on two ranks.
  EXPECT_EQ(
      SplitOf(2, {.size = 4, .index = 3, .leaves = 8}),
      (Split{.pieces = 2, .first = 1, .holders = 2, .holder = 1, .summed = true, .gradients = 2}));
  EXPECT_EQ(SplitOf(1, {.size = 2, .index = 1, .leaves = 2}),
            (Split{.holders = 2, .holder = 1, .summed = true}));
}

// Each element of each whole parameter is on as many ranks as there are holders.
TEST(SplitLayers, RanksTogetherHaveEachElement) {
  for (const ModelConfig& config :
       {Gpt2(), Llama(Family::kQwen2, 4), Llama(Family::kQwen2, 2), Llama(Family::kQwen3, 1)}) {
    const Model whole = Built(config, {});
    for (const TensorShare share : {TensorShare{.size = 1, .leaves = 4},
                                    {.size = 2, .leaves = 2},
                                    {.size = 2, .leaves = 4},
                                    {.size = 4, .leaves = 4}}) {
      std::map<std::string, std::vector<int>> counts;
      std::map<std::string, int> holders;
      for (int rank = 0; rank < share.size; ++rank) {
        const Model model = Built(config, ShareOf(share, rank));
        for (const Parameter* const parameter : model.AllParameters()) {
          if (parameter->by_word) continue;
          const Parameter& all = *whole.Find(parameter->name);
          EXPECT_EQ(WholeShape(*parameter), all.shape) << all.name;
          EXPECT_EQ(WholeElements(*parameter), all.elements()) << all.name;
          const Parameter& of_first =
              PartOfRank(*Built(config, ShareOf(share, 0)).Find(all.name), share, rank);
          EXPECT_EQ(of_first.split, parameter->split) << all.name;
          std::vector<int>& seen = counts[all.name];
          seen.resize(static_cast<std::size_t>(all.elements()));
          holders[all.name] = parameter->split.holders;
          std::int64_t here = 0;
          for (const ElementRun& run : RunsOf(*parameter)) {
            EXPECT_EQ(run.here, here) << all.name;
            here += run.count;
            for (std::int64_t i = 0; i < run.count; ++i)
              ++seen[static_cast<std::size_t>(run.whole + i)];
          }
          EXPECT_EQ(here, parameter->elements()) << all.name;
        }
      }
      for (const auto& [name, seen] : counts)
        EXPECT_THAT(seen, ::testing::Each(holders[name])) << name;
    }
  }
}

TEST(SplitLayers, CutsEachOfQueryKeyAndValueOfGpt2) {
  const Model model = Built(Gpt2(), {.size = 2, .index = 1, .leaves = 2});
  const Parameter& bias = *model.Find("transformer.h.0.attn.c_attn.bias");
  EXPECT_THAT(bias.shape, ElementsAre(36));
  const std::vector<ElementRun> runs = RunsOf(bias);
  ASSERT_THAT(runs, SizeIs(3));
  EXPECT_EQ(runs[0].whole, 12);
  EXPECT_EQ(runs[1].whole, 24 + 12);
  EXPECT_EQ(runs[2].whole, 48 + 12);
  EXPECT_THAT(model.Find("transformer.h.0.attn.c_attn.weight")->shape, ElementsAre(24, 36));
  EXPECT_EQ(model.Find("transformer.h.0.attn.c_proj.bias")->split.summed, false);
}

TEST(SplitLayers, StacksThePiecesOfOneRank) {
  const Model model = Built(Llama(Family::kLlama, 4), {.size = 1, .leaves = 4});
  EXPECT_THAT(model.Find("model.layers.0.self_attn.o_proj.weight")->shape, ElementsAre(96, 6));
  EXPECT_THAT(model.Find("model.layers.0.mlp.gate_proj.weight")->shape, ElementsAre(40, 24));
  EXPECT_EQ(model.Find("model.layers.0.input_layernorm.weight")->gradient_elements(), 4 * 24);
  EXPECT_EQ(NumNormEntries(*model.Find("model.layers.0.mlp.gate_proj.weight")), 4);
}

TEST(SplitLayers, NamesTheLeafsPieceAndGradient) {
  const TensorShare share{.size = 2, .index = 1, .leaves = 4};
  const Model model = Built(Llama(Family::kLlama, 2), share);
  const Parameter& key = *model.Find("model.layers.0.self_attn.k_proj.weight");
  EXPECT_EQ(PieceOf(key, share, 2).piece, 0);
  EXPECT_EQ(PieceOf(key, share, 2).gradient, 0);
  EXPECT_EQ(PieceOf(key, share, 3).piece, 0);
  EXPECT_EQ(PieceOf(key, share, 3).gradient, 1);
  const Parameter& up = *model.Find("model.layers.0.mlp.up_proj.weight");
  EXPECT_EQ(PieceOf(up, share, 3).piece, 1);
  EXPECT_EQ(PieceOf(up, share, 3).gradient, 0);
}

TEST(SplitLayers, PassOnTheRanksRowsAlone) {
  const Model whole = Built(Gpt2(), {});
  const Model part = Built(Gpt2(), {.size = 4, .index = 2, .leaves = 4});
  EXPECT_EQ(part.layers[0].cost.output_bytes, whole.layers[0].cost.output_bytes / 4);
  EXPECT_DOUBLE_EQ(part.layers[1].cost.Work(), whole.layers[1].cost.Work() / 4);
}

TEST(SplitLayers, CountWhatAllRanksHaveAndCompute) {
  for (const ModelConfig& config : {Gpt2(), Llama(Family::kQwen2, /*kv_heads=*/2)}) {
    const Model whole = Built(config, {});
    const Model part = Built(config, {.size = 4, .index = 1, .leaves = 4});
    EXPECT_EQ(part.num_parameters(), whole.num_parameters());
    EXPECT_EQ(part.FlopsPerMicrobatch(), whole.FlopsPerMicrobatch());
  }
}

TEST(SplitLayers, DealBlocksOfWordsWithoutPadding) {
  std::vector<int> blocks;
  for (int rank = 0; rank < 4; ++rank) {
    const auto [first, last] = BlocksOf({.size = 4, .index = rank, .leaves = 4}, Gpt2().vocab);
    blocks.push_back(last - first);
    const Model part = Built(Gpt2(), {.size = 4, .index = rank, .leaves = 4});
    EXPECT_THAT(part.layers.back().stash, SizeIs(HeadStash::kLogits + last - first));
  }
  EXPECT_THAT(blocks, ElementsAre(0, 1, 1, 1));
}

TEST(SplitLayers, WithoutSharesAreTheLayersOfOneRank) {
  const Model model = Built(Gpt2(), {});
  for (const Parameter* const parameter : model.AllParameters())
    EXPECT_EQ(parameter->split, Split()) << parameter->name;
}

TEST(CheckShare, RefusesSizesThatLeavesDoNotDivide) {
  const auto errors = [](ModelConfig config, const TensorShare& share) {
    config.head_size = 6;
    return CheckShare(config, /*microbatch=*/1, share);
  };
  EXPECT_THAT(errors(Gpt2(), {.size = 4, .leaves = 4}), IsEmpty());
  EXPECT_THAT(errors(Gpt2(), {.size = 2, .leaves = 3}), SizeIs(1));
  EXPECT_THAT(errors(Gpt2(), {.size = 4, .leaves = 2}), SizeIs(1));
  ModelConfig odd = Gpt2();
  odd.heads = odd.kv_heads = 6;
  odd.inner = 42;
  odd.context = 14;
  EXPECT_THAT(errors(odd, {.size = 4, .leaves = 4}), SizeIs(4));
}

}  // namespace
}  // namespace takt::model
