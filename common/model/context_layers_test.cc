// SPDX-License-Identifier: Apache-2.0
#include "common/model/context_layers.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::model {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

ModelConfig Gpt2() {
  return {.layers = 2,
          .hidden = 24,
          .heads = 4,
          .kv_heads = 4,
          .inner = 40,
          .context = 32,
          .positions = 32,
          .vocab = 70};
}

ModelConfig Llama(Family family) {
  ModelConfig config = Gpt2();
  config.family = family;
  config.kv_heads = 2;
  config.head_size = 6;
  config.tied_head = false;
  return config;
}

Model Built(const ModelConfig& config, int context_ranks) {
  return BuildModel(config, /*microbatch=*/3, {}, {}, context_ranks).value();
}

// Returns the pieces that the rank sees.
std::vector<int> SeenBy(const ContextShare& share, std::int64_t length, std::int64_t window) {
  std::vector<int> seen;
  for (int piece = 0; piece < 2 * share.size; ++piece) {
    if (SeesPiece(share, piece, length, window)) seen.push_back(piece);
  }
  return seen;
}

TEST(SeesPiece, EndsWithTheLatestPieceOfTheRank) {
  EXPECT_THAT(SeenBy({.size = 2, .index = 0}, 8, 0), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(SeenBy({.size = 2, .index = 1}, 8, 0), ElementsAre(0, 1, 2));
  EXPECT_THAT(SeenBy({.size = 4, .index = 3}, 8, 0), ElementsAre(0, 1, 2, 3, 4));
}

// The first query of piece 5 is at 40.
TEST(SeesPiece, LeavesOutWhatAWindowHides) {
  const ContextShare share{.size = 4, .index = 2};
  EXPECT_THAT(SeenBy(share, 8, 1), ElementsAre(2, 5));
  EXPECT_THAT(SeenBy(share, 8, 2), ElementsAre(1, 2, 4, 5));
  EXPECT_THAT(SeenBy(share, 8, 9), ElementsAre(1, 2, 4, 5));
  EXPECT_THAT(SeenBy(share, 8, 10), ElementsAre(0, 1, 2, 3, 4, 5));
}

TEST(ContextLayers, HaveTheRowsOfOneRank) {
  for (const ModelConfig& config : {Gpt2(), Llama(Family::kQwen3), Llama(Family::kMistral)}) {
    const Model whole = Built(config, 1);
    for (const int ranks : {2, 4}) {
      const Model model = Built(config, ranks);
      EXPECT_EQ(model.rows(), 3 * 32 / ranks);
      EXPECT_EQ(model.num_parameters(), whole.num_parameters());
      EXPECT_EQ(model.FlopsPerMicrobatch(), whole.FlopsPerMicrobatch());
      ASSERT_EQ(model.layers.size(), whole.layers.size());
      for (std::size_t i = 0; i < whole.layers.size(); ++i) {
        const Layer &layer = model.layers[i], &all = whole.layers[i];
        EXPECT_EQ(layer.cost.output_bytes * ranks, all.cost.output_bytes);
        EXPECT_NEAR(layer.cost.Work() * ranks, all.cost.Work(), 1e-6 * all.cost.Work());
        EXPECT_NEAR(layer.cost.recompute_flops * ranks, all.cost.recompute_flops,
                    1e-6 * all.cost.recompute_flops);
        ASSERT_EQ(layer.stash.size(), all.stash.size());
        for (std::size_t s = 0; s < all.stash.size(); ++s) {
          // Gradients of a norm's weights are as long for any number of rows.
          const bool by_row = all.stash[s].origin != Origin::kInputGrad;
          EXPECT_EQ(layer.stash[s].bytes * (by_row ? ranks : 1), all.stash[s].bytes)
              << all.stash[s].name;
        }
        const std::size_t more = layer.block < 0 ? 0 : ContextScratch::kNumTensors;
        EXPECT_EQ(layer.scratch.size(), all.scratch.size() + more);
      }
    }
  }
}

TEST(ContextLayers, MeetForKeysAndForTheirGradients) {
  const Model model = Built(Llama(Family::kLlama), 2);
  const Layer& block = model.layers[1];
  // Rank 1 passes both of its pieces on, with keys and values of 12 floats a row.
  const Part compute{};
  const Part meeting{
      .kind = PartKind::kExchange, .group = PartGroup::kContext, .bytes = 2 * 2 * 3 * 8 * 12 * 4};
  EXPECT_THAT(block.parts.forward, ElementsAre(compute, meeting, compute));
  EXPECT_THAT(block.parts.full, ElementsAre(compute, meeting, compute));
  EXPECT_THAT(block.parts.input_grad, ElementsAre(compute, meeting, compute, meeting, compute));
  EXPECT_TRUE(block.parts.weight_grad.empty());
  EXPECT_TRUE(model.layers.front().parts.forward.empty());
  EXPECT_TRUE(model.layers.back().parts.input_grad.empty());
}

TEST(ContextLayers, PassOnLessWhereAWindowHidesKeys) {
  ModelConfig config = Llama(Family::kMistral);
  const Model all = Built(config, 4);
  config.attention_window = 4;
  const Model windowed = Built(config, 4);
  EXPECT_LT(windowed.layers[1].parts.forward[1].bytes, all.layers[1].parts.forward[1].bytes);
}

TEST(ContextLayers, RefuseWhatCannotBeShared) {
  const auto error = [](const ModelConfig& config, int ranks, const TensorShare& tensor = {}) {
    return std::string(BuildModel(config, 1, {}, tensor, ranks).status().message());
  };
  EXPECT_THAT(error(Gpt2(), 3), HasSubstr("parallelism.context"));
  EXPECT_THAT(error(Gpt2(), 32), HasSubstr("model.context (32)"));
  EXPECT_THAT(error(Gpt2(), 2, {.size = 1, .leaves = 2}), HasSubstr("tensor"));
  ModelConfig mixture = Llama(Family::kMixtral);
  mixture.mixture = Mixture{.experts = 4, .chosen = 2, .inner = 40};
  EXPECT_THAT(error(mixture, 2), HasSubstr("router"));
  const ModelConfig emulated = {.family = Family::kEmulated, .layers = 2, .activation_bytes = 64};
  EXPECT_THAT(error(emulated, 2), HasSubstr("emulated"));
}

}  // namespace
}  // namespace takt::model
