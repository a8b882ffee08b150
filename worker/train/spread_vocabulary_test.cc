// SPDX-License-Identifier: Apache-2.0
// Ranks that have some blocks of words each, and meet, against one rank that has both tables: the
// bits are the same.
#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "common/layout/parameter_layout.h"
#include "common/layout/stage_layout.h"
#include "common/mesh/vocabulary_split.h"
#include "gtest/gtest.h"
#include "tests/testing/inproc_hub.h"
#include "worker/backend/cpu/cpu_backend.h"
#include "worker/backend/cpu/op_testing.h"
#include "worker/train/rows_testing.h"
#include "worker/train/spread_head.h"
#include "worker/train/spread_meetings.h"
#include "worker/train/stage.h"
#include "worker/transport/channel_collective.h"

namespace takt::train {
namespace {

using backend::testing::Floats;
using backend::testing::Random;
using model::Precision;

constexpr std::int64_t kRows = 6, kHidden = 4, kVocab = 10000;
constexpr int kBlocks = 3, kMicrobatches = 2;
constexpr LayerId kEmbedding{0}, kHead{2};
constexpr float kScale = 1.0F / 11;
// Smoothing and z-loss go through all blocks.
constexpr LossTerms kTerms = {.shares = {.target = 0.9F, .each = 0.1F / static_cast<float>(kVocab)},
                              .z_loss = 1e-3};

// What goes into one microbatch, and what comes out.
struct Microbatch {
  std::vector<std::int32_t> tokens, targets;
  Floats input, d_embedded;  // of the head; the gradient of what the embedding passes on
  double loss = 0;
  Floats norm, d_norm, d_input, embedded;
};

class SpreadVocabularyTest : public ::testing::TestWithParam<Precision> {
 protected:
  SpreadVocabularyTest() {
    unsigned seed = 0;
    for (const LayerParameters& layer : store_->layers()) {
      for (const ParameterRef& ref : layer.refs) {
        if (ref.norm_index < 0) continue;  // the head's use of the embedding's table
        std::ranges::copy(Random(ref.elements(), ++seed), ref.weight);
      }
    }
    EXPECT_TRUE(store_->Pack(*backend_).ok());
    for (Microbatch& microbatch : microbatches_) {
      microbatch.tokens = backend::testing::RandomTokens(kRows, kVocab, ++seed);
      microbatch.tokens[0] = microbatch.tokens[4];  // a word that is there twice
      microbatch.targets = backend::testing::RandomTokens(kRows, kVocab, ++seed);
      microbatch.targets[1] = kVocab - 1;
      microbatch.targets[3] = backend::kIgnoredTarget;
      microbatch.input = Random(kRows * kHidden, ++seed);
      microbatch.d_embedded = Random(kRows * kHidden, ++seed);
    }
  }

  const ParameterRef& table(LayerId layer) const {
    const std::vector<ParameterRef>& refs = store_->Layer(layer).refs;
    return *std::ranges::find_if(refs,
                                 [](const ParameterRef& ref) { return ref.parameter->by_word; });
  }

  // One rank computes all, by the layer and the ops that have the whole table.
  void ByOneRank();
  // Checks what one of the ranks has, which have the blocks up to `ends`.
  void CheckRank(transport::Collective& group, const mesh::VocabularyEnds& ends, int root) const;

  const model::Model model_ = rows_testing::ModelOfThreeBlocks({.products = GetParam()});
  const std::unique_ptr<backend::Backend> backend_ = backend::CreateCpuBackend({}).value();
  const std::unique_ptr<ParameterStore> store_ =
      ParameterStore::Create(model_, layout::LayOutParameters(model_, {kEmbedding, kHead}),
                             *backend_)
          .value();
  std::vector<Microbatch> microbatches_ = std::vector<Microbatch>(kMicrobatches);
};

void SpreadVocabularyTest::ByOneRank() {
  const layout::StageLayout layout =
      layout::LayOutStage(model_, {StageId(1), PpRank(0), kHead, LayerId(3)});
  const auto allocate = [&](std::int64_t bytes) {
    return backend_->Allocate(static_cast<std::size_t>(bytes), MemoryKind::kScratch).value();
  };
  const backend::Buffer stash = allocate(layout.stash_bytes),
                        scratch = allocate(layout.scratch_bytes);
  TensorObserver observer;
  Stage stage({.model = model_,
               .layout = layout,
               .parameters = *store_,
               .backend = *backend_,
               .scratch = scratch.data(),
               .observer = &observer});
  for (int m = 0; m < kMicrobatches; ++m) {
    Microbatch& microbatch = microbatches_[static_cast<std::size_t>(m)];
    observer = [&](const std::string& name, MicrobatchId, std::span<const float> values) {
      if (name == "act.final_norm.output") microbatch.norm.assign(values.begin(), values.end());
      if (name == "act_grad.final_norm.output")
        microbatch.d_norm.assign(values.begin(), values.end());
    };
    microbatch.d_input.resize(kRows * kHidden);
    const StageBuffers buffers{.view = {.tokens = microbatch.tokens.data(),
                                        .targets = microbatch.targets.data(),
                                        .terms = kTerms},
                               .input = microbatch.input.data(),
                               .d_input = microbatch.d_input.data(),
                               .stash = stash.data()};
    ASSERT_TRUE(stage.Forward(buffers, {.sum = &microbatch.loss, .scale = kScale}).ok());
    ASSERT_TRUE(stage.InputGrad(buffers).ok());
    ASSERT_TRUE(stage.WeightGrad({&buffers, 1}, m > 0).ok());
    microbatch.embedded.resize(kRows * kHidden);
    ASSERT_TRUE(backend_
                    ->Run(backend::EmbeddingForward{.tokens = microbatch.tokens.data(),
                                                    .token_table = table(kEmbedding).weight,
                                                    .output = microbatch.embedded.data(),
                                                    .batch = 2,
                                                    .context = kRows / 2,
                                                    .columns = kHidden})
                    .ok());
    ASSERT_TRUE(backend_
                    ->Run(backend::EmbeddingBackward{.tokens = microbatch.tokens.data(),
                                                     .d_output = microbatch.d_embedded.data(),
                                                     .d_token_table = table(kEmbedding).gradient,
                                                     .batch = 2,
                                                     .context = kRows / 2,
                                                     .columns = kHidden,
                                                     .vocab = kVocab,
                                                     .accumulate = m > 0})
                    .ok());
  }
}

// The rows of one rank, and the memory of its microbatch.
struct RankRows {
  std::unique_ptr<backend::Backend> backend = backend::CreateCpuBackend({}).value();
  std::unique_ptr<ParameterStore> store;  // null: no rows
  const ParameterRef* embedding = nullptr;
  const ParameterRef* head = nullptr;
};

RankRows MakeRows(const model::Model& model, const mesh::WordRun& words, const float* table) {
  RankRows rows;
  if (words.words == 0) return rows;
  rows.store =
      ParameterStore::Create(
          model, rows_testing::LayOutRows(model, words.first, words.words, {kEmbedding, kHead}),
          *rows.backend)
          .value();
  rows.embedding = &rows.store->Layer(kEmbedding).refs[0];
  rows.head = &rows.store->Layer(kHead).refs[0];
  std::copy_n(table + rows.embedding->first_element(), rows.embedding->elements(),
              rows.embedding->weight);
  EXPECT_TRUE(rows.store->Pack(*rows.backend).ok());
  return rows;
}

void ExpectRows(const ParameterRef& rows, const ParameterRef& whole) {
  const float* const expected = whole.gradient + rows.first_element();
  EXPECT_TRUE(std::equal(expected, expected + rows.elements(), rows.gradient));
}

// Passes the rows of a microbatch's words, and their gradient.
void CheckEmbedding(const SpreadMeetings& meetings, const RankRows& rows,
                    const Microbatch& expected, bool is_first, bool accumulate) {
  Floats scratch(kRows * kHidden), embedded(kRows * kHidden);
  const bool has_rows = rows.embedding != nullptr;
  ASSERT_TRUE(meetings
                  .Rows(StepId(1), expected.tokens.data(),
                        has_rows ? rows.embedding->weight : nullptr, scratch, embedded.data())
                  .ok());
  if (is_first) {
    EXPECT_EQ(embedded, expected.embedded);
  }
  ASSERT_TRUE(meetings
                  .RowsGrad(StepId(1), expected.tokens.data(),
                            is_first ? expected.d_embedded.data() : nullptr, scratch,
                            has_rows ? rows.embedding->gradient : nullptr, accumulate)
                  .ok());
}

void SpreadVocabularyTest::CheckRank(transport::Collective& group, const mesh::VocabularyEnds& ends,
                                     int root) const {
  const PpRank rank(group.index());
  const bool is_root = group.index() == root, is_first = group.index() == 0;
  const mesh::BlockRun blocks = mesh::BlocksOf(ends, rank);
  const RankRows rows =
      MakeRows(model_, mesh::WordsOf(ends, rank, kVocab), table(kEmbedding).weight);
  const SpreadHead head(model_, blocks, rows.head);
  const SpreadMeetings meetings({.group = &group,
                                 .ends = ends,
                                 .root = root,
                                 .rows = kRows,
                                 .columns = kHidden,
                                 .vocab = kVocab});
  std::vector<backend::SoftmaxPart> parts(kBlocks * kRows);
  std::vector<backend::SoftmaxRow> softmax(kRows);
  std::vector<Floats> logits(static_cast<std::size_t>(blocks.last - blocks.first),
                             Floats(kRows * model::kVocabularyBlock));
  std::vector<Floats> sums(static_cast<std::size_t>(head.partial_sums().most),
                           Floats(kRows * kHidden));
  std::vector<Floats> all_sums(kBlocks, Floats(kRows * kHidden));
  for (int m = 0; m < kMicrobatches; ++m) {
    const Microbatch& expected = microbatches_[static_cast<std::size_t>(m)];
    const StepId step(1);
    Floats norm = is_root ? expected.norm : Floats(kRows * kHidden);
    ASSERT_TRUE(meetings.Share(step, std::as_writable_bytes(std::span(norm))).ok());
    SpreadHeadMemory memory{.view = {.tokens = expected.tokens.data(),
                                     .targets = expected.targets.data(),
                                     .terms = kTerms},
                            .norm = norm.data(),
                            .parts = parts.data(),
                            .softmax = softmax.data()};
    for (Floats& block : logits) memory.logits.emplace_back(block.data());
    for (Floats& sum : sums) memory.sums.emplace_back(sum.data());
    ASSERT_TRUE(head.Forward(*rows.backend, memory).ok());
    ASSERT_TRUE(meetings.Gather(step, parts.data()).ok());
    double loss = 0;
    ASSERT_TRUE(head.Loss(*rows.backend, memory, {.sum = &loss, .scale = kScale}).ok());
    EXPECT_EQ(loss, expected.loss);
    ASSERT_TRUE(head.Backward(*rows.backend, memory, m > 0).ok());
    std::vector<std::span<std::byte>> mine, whole;
    for (std::size_t i = 0; i < head.partial_sums().parts.size(); ++i)
      mine.push_back(std::as_writable_bytes(std::span(sums[i])));
    for (Floats& sum : all_sums) whole.push_back(std::as_writable_bytes(std::span(sum)));
    ASSERT_TRUE(meetings.Return(step, mine, whole).ok());
    if (is_root) {
      EXPECT_EQ(all_sums[0], expected.d_norm);
    }
    CheckEmbedding(meetings, rows, expected, is_first, m > 0);
  }
  if (rows.store == nullptr) return;
  ExpectRows(*rows.embedding, table(kEmbedding));
  ExpectRows(*rows.head, table(kHead));
}

TEST_P(SpreadVocabularyTest, HasTheBitsOfOneRankForAnySplit) {
  ByOneRank();
  for (const mesh::VocabularyEnds& ends : {mesh::VocabularyEnds{3},
                                           {1, 3},
                                           {2, 3},
                                           {0, 3},
                                           {3, 3},
                                           {1, 2, 3},
                                           {1, 1, 3},
                                           {2, 2, 3},
                                           {0, 2, 3}}) {
    SCOPED_TRACE(::testing::PrintToString(ends));
    const auto size = static_cast<int>(ends.size());
    // The last stage is on the last rank, or on that of stage 0, as in a V.
    for (const int root : {size - 1, 0}) {
      testing::InprocHub hub;
      std::vector<Rank> ranks;
      for (int i = 0; i < size; ++i) ranks.push_back(Rank(i));
      std::vector<std::thread> threads;
      for (int index = 0; index < size; ++index) {
        threads.emplace_back([&, index] {
          const auto transport = hub.Connect({.rank = ranks[index], .num_ranks = size});
          const auto group = transport::CreateCollective(
              transport.get(), {.name = "vocabulary", .ranks = ranks, .index = index});
          ASSERT_TRUE(group.ok()) << group.status();
          CheckRank(**group, ends, root);
        });
      }
      for (std::thread& thread : threads) thread.join();
    }
  }
}

TEST_P(SpreadVocabularyTest, TheNormBeforeItHasTheBitsOfTheWholeHead) {
  ByOneRank();
  const layout::StageLayout layout = layout::LayOutStage(
      model_, {StageId(1), PpRank(0), kHead, LayerId(3)}, layout::HeadLogits::kSpread);
  const auto store =
      ParameterStore::Create(model_, layout::LayOutParameters(model_, {kHead}, {.spread = true}),
                             *backend_)
          .value();
  const std::vector<ParameterRef>& refs = store->Layer(kHead).refs;
  const std::vector<ParameterRef>& whole = store_->Layer(kHead).refs;
  ASSERT_EQ(refs.size(), 2U);
  for (std::size_t i = 0; i < refs.size(); ++i)
    std::copy_n(whole[i].weight, whole[i].elements(), refs[i].weight);
  const backend::Buffer stash =
      backend_->Allocate(static_cast<std::size_t>(layout.stash_bytes), MemoryKind::kStash).value();
  Stage stage({.model = model_, .layout = layout, .parameters = *store, .backend = *backend_});
  for (std::size_t m = 0; m < microbatches_.size(); ++m) {
    const Microbatch& expected = microbatches_[m];
    Floats norm(kRows * kHidden), d_input(kRows * kHidden);
    const StageBuffers buffers{.input = expected.input.data(),
                               .output = norm.data(),
                               .d_output = expected.d_norm.data(),
                               .d_input = d_input.data(),
                               .stash = stash.data()};
    ASSERT_TRUE(stage.Forward(buffers, {}).ok());
    EXPECT_EQ(norm, expected.norm);
    ASSERT_TRUE(stage.InputGrad(buffers).ok());
    EXPECT_EQ(d_input, expected.d_input);
    ASSERT_TRUE(stage.WeightGrad({&buffers, 1}, m > 0).ok());
  }
  for (std::size_t i = 0; i < refs.size(); ++i) {
    EXPECT_TRUE(
        std::equal(refs[i].gradient, refs[i].gradient + refs[i].elements(), whole[i].gradient));
  }
}

// The parameters of stage 0 where the rows of the token table are elsewhere.
layout::Section WithoutTables(layout::Section section) {
  std::erase_if(section.tensors,
                [](const layout::Tensor& tensor) { return tensor.parameter->by_word; });
  return section;
}

TEST(SpreadEmbedding, HasTheBitsOfTheWholeEmbedding) {
  const model::Model model = rows_testing::ModelOfThreeBlocks();
  const auto cpu = backend::CreateCpuBackend({}).value();
  const layout::Section parameters = layout::LayOutParameters(model, {kEmbedding});
  const auto whole = ParameterStore::Create(model, parameters, *cpu).value();
  const auto spread = ParameterStore::Create(model, WithoutTables(parameters), *cpu).value();
  const ParameterRef& table = whole->Layer(kEmbedding).refs[0];
  const ParameterRef& positions = whole->Layer(kEmbedding).refs[1];
  ASSERT_EQ(spread->Layer(kEmbedding).refs.size(), 1U);
  const ParameterRef& spread_positions = spread->Layer(kEmbedding).refs[0];
  std::ranges::copy(Random(table.elements(), 1), table.weight);
  std::ranges::copy(Random(positions.elements(), 2), positions.weight);
  std::copy_n(positions.weight, positions.elements(), spread_positions.weight);
  const layout::StageLayout layout =
      layout::LayOutStage(model, {StageId(0), PpRank(0), kEmbedding, LayerId(1)});
  const auto layer_of = [&](const ParameterStore& store) {
    return MakeLayer({.model = model,
                      .layer = model.layers.front(),
                      .parameters = store.Layer(kEmbedding),
                      .place = layout.layers.front()});
  };
  const std::unique_ptr<Layer> one = layer_of(*whole), other = layer_of(*spread);
  for (const unsigned m : {0U, 1U}) {
    const std::vector<std::int32_t> tokens = backend::testing::RandomTokens(kRows, kVocab, 10 + m);
    Floats rows, expected(kRows * kHidden), output(kRows * kHidden), d_rows(kRows * kHidden);
    for (const std::int32_t token : tokens) {
      const float* const row = table.weight + token * kHidden;
      rows.insert(rows.end(), row, row + kHidden);
    }
    const TokenView view{.tokens = tokens.data()};
    ASSERT_TRUE(one->Forward({.backend = cpu.get(), .view = view, .output = expected.data()}).ok());
    ASSERT_TRUE(
        other->Forward({.backend = cpu.get(), .input = rows.data(), .output = output.data()}).ok());
    EXPECT_EQ(output, expected);
    const Floats d_output = Random(kRows * kHidden, 20 + m);
    ASSERT_TRUE(other
                    ->InputGrad({.backend = cpu.get(),
                                 .input = rows.data(),
                                 .d_output = d_output.data(),
                                 .d_input = d_rows.data()})
                    .ok());
    EXPECT_EQ(d_rows, d_output);
    const WeightGradInput input{.view = view, .d_output = d_output.data()};
    const WeightGradCall call{
        .backend = cpu.get(), .microbatches = {&input, 1}, .accumulate = m > 0};
    ASSERT_TRUE(one->WeightGrad(call).ok());
    ASSERT_TRUE(other->WeightGrad(call).ok());
  }
  EXPECT_TRUE(std::equal(positions.gradient, positions.gradient + positions.elements(),
                         spread_positions.gradient));
}

// A family without positions has no parameters left there.
TEST(SpreadEmbedding, WithoutPositionsPassesRowsOn) {
  const model::Model model = rows_testing::ModelOfThreeBlocks();
  const auto cpu = backend::CreateCpuBackend({}).value();
  const layout::StageLayout layout =
      layout::LayOutStage(model, {StageId(0), PpRank(0), kEmbedding, LayerId(1)});
  const LayerParameters none{.layer = kEmbedding};
  const std::unique_ptr<Layer> layer = MakeLayer({.model = model,
                                                  .layer = model.layers.front(),
                                                  .parameters = none,
                                                  .place = layout.layers.front()});
  const Floats rows = Random(kRows * kHidden, 3);
  Floats output(kRows * kHidden);
  ASSERT_TRUE(
      layer->Forward({.backend = cpu.get(), .input = rows.data(), .output = output.data()}).ok());
  EXPECT_EQ(output, rows);
}

INSTANTIATE_TEST_SUITE_P(Products, SpreadVocabularyTest,
                         ::testing::Values(Precision::kF32, Precision::kBf16),
                         [](const auto& info) {
                           return info.param == Precision::kF32 ? "F32" : "Bf16";
                         });

}  // namespace
}  // namespace takt::train
