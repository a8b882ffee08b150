// SPDX-License-Identifier: Apache-2.0
#include "common/model/shared_mixture.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/model/llama.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::model {
namespace {

using ::testing::HasSubstr;

constexpr int kMicrobatch = 2;

ModelConfig Config() {
  return {.family = Family::kQwen3Moe,
          .layers = 2,
          .hidden = 36,
          .heads = 3,
          .kv_heads = 1,
          .head_size = 12,
          .inner = 44,
          .context = 19,
          .positions = 19,
          .vocab = 131,
          .tied_head = false,
          .mixture = Mixture{.experts = 8, .chosen = 3, .inner = 20, .dense_blocks = {1}}};
}

Model ModelOf(const ExpertShare& share) {
  return BuildModel(Config(), kMicrobatch, {}, {}, 1, share).value();
}

// Of the experts that a token has, so many at most are on one rank.
TEST(SharedMixture, TakesLittleMemoryBesideItsTensors) {
  EXPECT_EQ(SharingBytes(ModelOf({})), 0);
  EXPECT_EQ(MostRowsOfSource(ModelOf({})), 0);
  constexpr std::int64_t kSlice = 512 << 10, kTokens = kMicrobatch * 19;
  EXPECT_EQ(SharingBytes(ModelOf({.size = 2})), kSlice);
  EXPECT_EQ(MostRowsOfSource(ModelOf({.size = 2})), kTokens * 3);
  EXPECT_EQ(MostRowsOfSource(ModelOf({.size = 8})), kTokens);
}

TEST(SharedMixture, EachExpertIsOnOneRank) {
  const Model whole = ModelOf({});
  for (const int size : {2, 4, 8}) {
    std::multiset<std::string> experts;
    for (int index = 0; index < size; ++index) {
      const Model model = ModelOf({.size = size, .index = index});
      ASSERT_EQ(model.AllParameters().size(), whole.AllParameters().size());
      EXPECT_EQ(model.num_parameters(), whole.num_parameters());
      EXPECT_EQ(model.FlopsPerMicrobatch(), whole.FlopsPerMicrobatch());
      for (std::size_t i = 0; i < whole.AllParameters().size(); ++i) {
        const Parameter& parameter = *model.AllParameters()[i];
        EXPECT_EQ(parameter.name, whole.AllParameters()[i]->name);
        EXPECT_EQ(parameter.shape, whole.AllParameters()[i]->shape);
        EXPECT_EQ(NumNormEntries(parameter), NumNormEntries(*whole.AllParameters()[i]));
        const bool of_expert = parameter.name.find(".experts.") != std::string::npos;
        EXPECT_EQ(parameter.expert >= 0, of_expert) << parameter.name;
        EXPECT_EQ(parameter.split.gradients, of_expert ? size : 1);
        EXPECT_TRUE(of_expert || !parameter.away);
        if (of_expert && !parameter.away) {
          EXPECT_EQ(parameter.expert / (8 / size), index);
          experts.insert(parameter.name);
        }
      }
    }
    EXPECT_EQ(experts.size(), 8U * 3);
    EXPECT_EQ(std::set(experts.begin(), experts.end()).size(), experts.size());
  }
}

TEST(SharedMixture, KeepsRoomForHalfAsManyRowsAgain) {
  const Model whole = ModelOf({}), shared = ModelOf({.size = 4, .index = 2});
  const Layer &dense = shared.layers[2], &block = shared.layers[1], &all = whole.layers[1];
  EXPECT_EQ(dense.stash.size(), whole.layers[2].stash.size());
  EXPECT_TRUE(dense.parts.forward.empty());
  constexpr std::int64_t kPairs = kMicrobatch * 19 * 3, kRoom = 171;
  static_assert(RoomForArrivals(kMicrobatch * 19, 3) == kRoom && 2 * kRoom == 3 * kPairs);
  ASSERT_EQ(block.stash.size(), all.stash.size() + ArrivalsStash::kNumTensors);
  ASSERT_EQ(block.scratch.size(), all.scratch.size() + ArrivalsScratch::kNumTensors);
  for (const auto tensor :
       {LlamaBlockStash::kGate, LlamaBlockStash::kUp, LlamaBlockStash::kProduct}) {
    EXPECT_EQ(all.stash[tensor].bytes, 4 * kPairs * 20);
    EXPECT_EQ(block.stash[tensor].bytes, 4 * kRoom * 20);
  }
  EXPECT_EQ(block.scratch[LlamaBlockScratch::kDProduct].bytes, 4 * kRoom * 20);
  const std::size_t first = all.stash.size();
  EXPECT_EQ(block.stash[first + ArrivalsStash::kOffsets].bytes, 4 * 4 * 8);
  EXPECT_EQ(block.stash[first + ArrivalsStash::kInput].bytes, 4 * kRoom * 36);
  EXPECT_EQ(block.stash[first + ArrivalsStash::kWeights].bytes, 4 * kRoom);
  EXPECT_EQ(block.stash[first + ArrivalsStash::kDOutput].bytes, 4 * kRoom * 36);
}

TEST(SharedMixture, MeetsThreeTimesInFAndInI) {
  const Model model = ModelOf({.size = 2, .index = 0});
  const LayerParts& parts = model.layers[1].parts;
  std::vector<std::int64_t> forward, input_grad;
  for (const Part& part : parts.forward) {
    if (part.meets()) forward.push_back(part.bytes);
  }
  for (const Part& part : parts.input_grad) {
    if (part.meets()) input_grad.push_back(part.bytes);
  }
  constexpr std::int64_t kPairs = kMicrobatch * 19 * 3;
  EXPECT_EQ(forward, (std::vector<std::int64_t>{4 * 8, 4 * kPairs * 37 / 2, 4 * kPairs * 18}));
  EXPECT_EQ(input_grad,
            (std::vector<std::int64_t>{4 * kPairs * 18, 4 * kPairs * 37 / 2, 4 * kPairs * 18}));
  EXPECT_TRUE(parts.weight_grad.empty());
  EXPECT_TRUE(parts.selective.empty());
  // They are all of F but the way back.
  EXPECT_EQ(parts.full, std::vector(parts.forward.begin(), parts.forward.begin() + 4));
}

TEST(SharedMixture, TakesLongerOnTheRankWithTheMostRows) {
  const Model model = ModelOf({.size = 2, .index = 0});
  EXPECT_EQ(SlowestShare(model, model.layers[2], kExpertImbalance), 1);
  EXPECT_GT(SlowestShare(model, model.layers[1], kExpertImbalance), 1.05);
  EXPECT_LT(SlowestShare(model, model.layers[1], kExpertImbalance), kExpertImbalance);
  EXPECT_EQ(SlowestShare(model, model.layers[1], 1), 1);
  EXPECT_EQ(SlowestShare(ModelOf({}), model.layers[1], kExpertImbalance), 1);
}

TEST(SharedMixture, RefusesExpertsThatRanksCannotShareEvenly) {
  EXPECT_THAT(std::string(BuildModel(Config(), 1, {}, {}, 1, {.size = 3}).status().message()),
              HasSubstr("parallelism.expert is 3: must divide model.experts.count (8)"));
  ModelConfig dense = Config();
  dense.family = Family::kQwen3;
  dense.mixture = std::nullopt;
  EXPECT_FALSE(BuildModel(dense, 1, {}, {}, 1, {.size = 2}).ok());
}

}  // namespace
}  // namespace takt::model
