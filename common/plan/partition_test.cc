// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "common/plan/plan.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rapidcheck/gtest.h"

namespace takt::plan {
namespace {

using schedule::Placement;
using ::testing::ElementsAre;

model::Model Gpt2(int layers, int hidden, int vocab) {
  return *model::BuildModel({.layers = layers,
                             .hidden = hidden,
                             .heads = 1,
                             .kv_heads = 1,
                             .inner = 4 * hidden,
                             .context = 32,
                             .positions = 32,
                             .vocab = vocab},
                            1);
}

// Makes a model of blocks of the given work between an embedding and a head.
model::Model Weighted(const std::vector<int>& blocks, int embedding, int head) {
  model::Model model;
  model.layers.push_back(
      {.kind = model::LayerKind::kEmbedding, .cost = {.forward_flops = 1.0 * embedding}});
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    model.layers.push_back({.kind = model::LayerKind::kGpt2Block,
                            .block = static_cast<int>(i),
                            .cost = {.weight_grad_flops = 1.0 * blocks[i]}});
  }
  model.layers.push_back(
      {.kind = model::LayerKind::kGpt2Head, .cost = {.input_grad_flops = 1.0 * head}});
  return model;
}

// Returns the number of blocks of each stage.
std::vector<int> Counts(const model::Model& model, const mesh::Partition& partition) {
  std::vector<int> counts;
  for (const mesh::Stage& stage : partition) {
    int count = 0;
    for (int layer = stage.first_layer.value(); layer < stage.last_layer.value(); ++layer) {
      count += model.layers[layer].block >= 0;
    }
    counts.push_back(count);
  }
  return counts;
}

std::vector<int> BalancedCounts(const model::Model& model, int num_stages) {
  return Counts(model, *MakePartition(model, num_stages, {}, Placement::kLoop, num_stages));
}

TEST(Partition, GivesTheEmbeddingToTheFirstStageAndTheHeadToTheLast) {
  const mesh::Partition partition =
      *MakePartition(Gpt2(4, 64, 256), 2, {3, 1}, Placement::kLoop, 2);
  ASSERT_EQ(partition.size(), 2u);
  EXPECT_EQ(partition[0].first_layer, LayerId(0));
  EXPECT_EQ(partition[0].last_layer, LayerId(4));
  EXPECT_EQ(partition[1].first_layer, LayerId(4));
  EXPECT_EQ(partition[1].last_layer, LayerId(6));
}

TEST(Partition, CountsTheHeadAsWorkOfTheLastStage) {
  EXPECT_THAT(BalancedCounts(Gpt2(8, 64, 16), 4), ElementsAre(2, 2, 2, 2));
  // The head of GPT-2 124M weighs about five of its blocks.
  EXPECT_THAT(BalancedCounts(Gpt2(12, 768, 50257), 2), ElementsAre(9, 3));
}

TEST(Partition, LeavesAHeadAloneThatIsAsMuchAsAStage) {
  EXPECT_THAT(BalancedCounts(Gpt2(12, 768, 50257), 4), ElementsAre(4, 4, 4, 0));
  EXPECT_THAT(BalancedCounts(Weighted({1, 1, 1}, 9, 9), 3), ElementsAre(0, 3, 0));
}

TEST(Partition, TakesStagesOfTheEmbeddingOrTheHeadAlone) {
  const model::Model model = Weighted({1, 1, 1}, 0, 0);
  for (const std::vector<int>& counts : {std::vector<int>{3, 0}, {0, 3}, {0, 1, 2, 0}}) {
    const int stages = static_cast<int>(counts.size());
    const auto partition = MakePartition(model, stages, counts, Placement::kLoop, stages);
    ASSERT_TRUE(partition.ok()) << partition.status();
    EXPECT_EQ(Counts(model, *partition), counts);
    for (const mesh::Stage& stage : *partition) EXPECT_LT(stage.first_layer, stage.last_layer);
  }
  EXPECT_EQ(MakePartition(model, 5, {}, Placement::kLoop, 5)->size(), 5u);
}

TEST(Partition, OfEquallyGoodCutsTakesTheMostEven) {
  EXPECT_THAT(BalancedCounts(Weighted(std::vector<int>(10, 1), 0, 0), 4),
              ::testing::UnorderedElementsAre(2, 2, 3, 3));
}

TEST(Partition, PlacesStagesAsTheScheduleSays) {
  const model::Model model = Weighted(std::vector<int>(4, 1), 0, 0);
  const auto ranks = [&](Placement placement) {
    std::vector<int> ranks;
    const mesh::Partition partition = *MakePartition(model, 4, {}, placement, 2);
    for (const mesh::Stage& stage : partition) ranks.push_back(stage.pp_rank.value());
    return ranks;
  };
  EXPECT_THAT(ranks(Placement::kLoop), ElementsAre(0, 1, 0, 1));
  EXPECT_THAT(ranks(Placement::kV), ElementsAre(0, 1, 1, 0));
}

TEST(Partition, TakesEmulatedModels) {
  const model::Model model = *model::BuildModel({.family = model::Family::kEmulated,
                                                 .layers = 5,
                                                 .forward_seconds = 1,
                                                 .activation_bytes = 1},
                                                1);
  const mesh::Partition partition = *MakePartition(model, 2, {}, Placement::kLoop, 2);
  EXPECT_EQ(partition[1].last_layer, LayerId(5));
  EXPECT_THAT(Counts(model, partition), ::testing::UnorderedElementsAre(2, 3));
}

TEST(Partition, RefusesImpossibleStages) {
  const model::Model model = Weighted({1, 1, 1}, 0, 0);
  EXPECT_EQ(
      MakePartition(model, 6, {}, Placement::kLoop, 3).status().message(),
      "parallelism.pipeline is 3: makes 6 stages with 2 a rank; must be at most the layers "
      "(5, the embedding and the head among them); use fewer ranks or chunks, or more layers");
  for (const std::vector<int>& counts : {std::vector<int>{1, 1}, {4, 0}, {1, 1, 1}, {4, -1}}) {
    EXPECT_THAT(
        std::string(MakePartition(model, 2, counts, Placement::kLoop, 2).status().message()),
        ::testing::HasSubstr("must be 2 counts that sum to model.layers (3); only the first"));
  }
  EXPECT_FALSE(MakePartition(model, 3, {1, 0, 2}, Placement::kLoop, 3).ok());
}

TEST(Partition, IsQuickForTheLargestModels) {
  const std::vector<int> blocks(4096, 7);
  for (const int stages : {1, 64, 2048, 4096}) {
    EXPECT_EQ(BalancedCounts(Weighted(blocks, 3, 20), stages).size(),
              static_cast<std::size_t>(stages));
  }
}

// Returns the least that the largest work of a stage can be, by trying all ways to cut.
int BruteForce(const std::vector<int>& work, std::size_t begin, int stages) {
  if (stages == 1) {
    int sum = 0;
    for (std::size_t i = begin; i < work.size(); ++i) sum += work[i];
    return sum;
  }
  int best = 1 << 30, run = 0;
  for (std::size_t end = begin + 1; end + stages - 1 <= work.size(); ++end) {
    run += work[end - 1];
    best = std::min(best, std::max(run, BruteForce(work, end, stages - 1)));
  }
  return best;
}

RC_GTEST_PROP(Partition, HasTheLeastLargestStage, ()) {
  const int num_blocks = *rc::gen::inRange(1, 10);
  const auto blocks = *rc::gen::container<std::vector<int>>(num_blocks, rc::gen::inRange(0, 20));
  const int stages = *rc::gen::inRange(1, num_blocks + 3);
  const int embedding = *rc::gen::inRange(0, 30), head = *rc::gen::inRange(0, 60);
  const model::Model model = Weighted(blocks, embedding, head);
  const absl::StatusOr<mesh::Partition> partition =
      MakePartition(model, stages, {}, Placement::kLoop, stages);
  RC_ASSERT(partition.ok());
  std::vector<int> work = blocks;
  work.insert(work.begin(), embedding);
  work.push_back(head);
  int largest = 0, layer = 0;
  for (const mesh::Stage& stage : *partition) {
    RC_ASSERT(stage.first_layer == LayerId(layer));
    RC_ASSERT(stage.last_layer > stage.first_layer);
    int run = 0;
    for (; layer < stage.last_layer.value(); ++layer) run += work[layer];
    largest = std::max(largest, run);
  }
  RC_ASSERT(layer == num_blocks + 2);
  RC_ASSERT(largest == BruteForce(work, 0, stages));
}

}  // namespace
}  // namespace takt::plan
