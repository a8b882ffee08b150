// SPDX-License-Identifier: Apache-2.0
#include "worker/train/parameter_store.h"
#include "worker/backend/cpu/cpu_backend.h"

#include <algorithm>
#include <set>

#include "common/layout/packed_matrix.h"
#include "common/layout/parameter_layout.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/train/rows_testing.h"

namespace takt::train {
namespace {

constexpr char kTokenTable[] = "transformer.wte.weight";

// A model of an embedding, two blocks and a head.
model::Model TinyModel() {
  return model::BuildModel({.layers = 2,
                            .hidden = 6,
                            .heads = 2,
                            .kv_heads = 2,
                            .inner = 24,
                            .context = 5,
                            .positions = 7,
                            .vocab = 11},
                           /*microbatch=*/2)
      .value();
}

class ParameterStoreTest : public ::testing::Test {
 protected:
  std::unique_ptr<ParameterStore> Create(std::vector<int> layers) {
    std::vector<LayerId> ids(layers.begin(), layers.end());
    return ParameterStore::Create(model_, layout::LayOutParameters(model_, ids), *backend_).value();
  }

  const model::Model model_ = TinyModel();
  const std::unique_ptr<backend::Backend> backend_ = backend::CreateCpuBackend({}).value();
};

TEST_F(ParameterStoreTest, SharesATiedWeightOfTheSameRank) {
  const auto store = Create({0, 1, 2, 3});
  const auto [own, tied] = store->tied_uses();
  ASSERT_NE(own, nullptr);
  ASSERT_NE(tied, nullptr);
  EXPECT_EQ(own->weight, tied->weight);
  EXPECT_NE(own->gradient, tied->gradient);
  EXPECT_NE(own->m, nullptr);
  EXPECT_EQ(tied->m, nullptr);
}

TEST_F(ParameterStoreTest, HoldsACopyOfATiedWeightOfAnotherRank) {
  const auto store = Create({2, 3});
  const auto [own, tied] = store->tied_uses();
  EXPECT_EQ(own, nullptr);
  ASSERT_NE(tied, nullptr);
  EXPECT_NE(tied->weight, nullptr);
  EXPECT_NE(tied->m, nullptr);
  EXPECT_EQ(tied->norm_index, -1);  // the embedding's rank counts it
}

TEST_F(ParameterStoreTest, HasOneUseOnTheEmbeddingsRank) {
  const auto [own, tied] = Create({0, 1})->tied_uses();
  EXPECT_NE(own, nullptr);
  EXPECT_EQ(tied, nullptr);
}

// Whatever the partition, every entry of the norm exchange has exactly one owner.
TEST_F(ParameterStoreTest, CountsEveryParameterOnceInTheNorm) {
  const int total = static_cast<int>(model_.AllParameters().size());
  for (const auto& ranks : {std::vector<std::vector<int>>{{0, 1, 2, 3}},
                            {{0, 1}, {2, 3}},
                            {{0, 3}, {1, 2}},
                            {{0}, {1}, {2}, {3}}}) {
    std::multiset<int> counted;
    for (const std::vector<int>& layers : ranks) {
      const auto store = Create(layers);
      for (const LayerParameters& layer : store->layers()) {
        for (const ParameterRef& ref : layer.refs) {
          if (ref.norm_index >= 0) counted.insert(ref.norm_index);
        }
      }
    }
    EXPECT_EQ(static_cast<int>(counted.size()), total);
    for (int i = 0; i < total; ++i) EXPECT_EQ(counted.count(i), 1U) << i;
  }
}

TEST_F(ParameterStoreTest, KeepsALayersGradientsInOneRange) {
  const auto store = Create({0, 3});
  for (const LayerParameters& layer : store->layers()) {
    const float* end = layer.gradients.data();
    for (const ParameterRef& ref : layer.refs) {
      EXPECT_GE(ref.gradient, end);  // in order, without overlap
      end = ref.gradient + ref.parameter->elements();
    }
    EXPECT_LE(end, layer.gradients.data() + layer.gradients.size());
  }
  const LayerParameters& head = store->Layer(LayerId(3));
  ASSERT_EQ(head.refs.size(), 3U);
  EXPECT_EQ(head.refs[2].parameter->name, kTokenTable);
}

class WeightVersions : public ParameterStoreTest {
 protected:
  // Both uses of a tied weight are on this rank, so they must change together.
  explicit WeightVersions(int num_versions = 3)
      : store_(ParameterStore::Create(model_,
                                      layout::LayOutParameters(model_, {LayerId(0), LayerId(3)},
                                                               {.num_versions = num_versions}),
                                      *backend_)
                   .value()) {}

  void Fill(float value) {
    for (const LayerParameters& layer : store_->layers()) {
      for (const ParameterRef& ref : layer.refs) {
        std::fill_n(ref.weight, ref.parameter->elements(), value);
      }
    }
  }

  // Returns the first and the last number of every weight, as one value if they all agree.
  std::set<float> Values() const {
    std::set<float> values;
    for (const LayerParameters& layer : store_->layers()) {
      for (const ParameterRef& ref : layer.refs) {
        values.insert(ref.weight[0]);
        values.insert(ref.weight[ref.parameter->elements() - 1]);
      }
    }
    return values;
  }

  std::set<float> ValuesOf(int version) {
    store_->SelectVersion(version);
    return Values();
  }

  const std::unique_ptr<ParameterStore> store_;
};

TEST_F(WeightVersions, GrowOlderWithEachUpdate) {
  for (const float value : {1.0F, 2.0F, 3.0F, 4.0F, 5.0F}) {
    store_->SelectVersion(2);  // whichever version layers read last
    store_->BeginUpdate();
    Fill(value);
  }
  EXPECT_THAT(ValuesOf(0), ::testing::ElementsAre(5));
  EXPECT_THAT(ValuesOf(1), ::testing::ElementsAre(4));
  EXPECT_THAT(ValuesOf(2), ::testing::ElementsAre(3));
}

TEST_F(WeightVersions, AreMadeOfTheNewest) {
  Fill(7);
  store_->BeginUpdate();
  for (const LayerParameters& layer : store_->layers()) {
    for (const ParameterRef& ref : layer.refs) {
      EXPECT_EQ(ref.previous[0], 7);
      EXPECT_NE(ref.previous, ref.weight);
    }
  }
}

TEST_F(WeightVersions, BecomeTheNewestWhenSpread) {
  store_->BeginUpdate();
  Fill(9);
  store_->SelectVersion(1);
  ASSERT_TRUE(store_->SpreadNewest(*backend_).ok());
  EXPECT_THAT(Values(), ::testing::ElementsAre(9));
  for (int version = 0; version < 3; ++version) {
    EXPECT_THAT(ValuesOf(version), ::testing::ElementsAre(9)) << version;
  }
}

class OneWeightVersion : public WeightVersions {
 protected:
  OneWeightVersion() : WeightVersions(1) {}
};

TEST_F(OneWeightVersion, IsUpdatedInPlace) {
  const float* const before = store_->layers()[0].refs[0].weight;
  store_->BeginUpdate();
  EXPECT_EQ(store_->layers()[0].refs[0].weight, before);
  EXPECT_EQ(store_->layers()[0].refs[0].previous, before);
}

class PackedWeights : public ParameterStoreTest {
 protected:
  PackedWeights() {
    model_bf16_.precisions.products = model::Precision::kBf16;
    std::vector<LayerId> all;
    for (int id = 0; id < static_cast<int>(model_bf16_.layers.size()); ++id) {
      all.push_back(LayerId(id));
    }
    store_ =
        ParameterStore::Create(
            model_bf16_, layout::LayOutParameters(model_bf16_, all, {.num_versions = 2}), *backend_)
            .value();
  }

  // Returns row 0 of the packed matrix [k,n].
  std::vector<float> FirstRow(const backend::Bf16* packed, std::int64_t k, std::int64_t n) const {
    std::vector<float> one(static_cast<std::size_t>(k)), row(static_cast<std::size_t>(n));
    one[0] = 1;
    EXPECT_TRUE(backend_
                    ->Run(backend::MatmulBf16{
                        .a = one.data(), .b = packed, .c = row.data(), .m = 1, .n = n, .k = k})
                    .ok());
    return row;
  }

  model::Model model_bf16_ = TinyModel();
  std::unique_ptr<ParameterStore> store_;
};

TEST_F(PackedWeights, AreOfMatricesThatLayersMultiplyBy) {
  for (const LayerParameters& layer : store_->layers()) {
    for (const ParameterRef& ref : layer.refs) {
      const std::vector<std::int64_t>& shape = ref.parameter->shape;
      const bool matrix = shape.size() == 2 && layer.layer != LayerId(0);
      EXPECT_EQ(ref.packed != nullptr, matrix) << ref.parameter->name;
      EXPECT_EQ(ref.packed_transposed != nullptr, matrix) << ref.parameter->name;
    }
  }
}

TEST_F(PackedWeights, HaveTheBiasesThatAreKeptRounded) {
  constexpr std::size_t kBias = 3;  // c_attn.bias
  model_bf16_.layers[1].parameters[kBias].kept_rounded = true;
  const auto store =
      ParameterStore::Create(
          model_bf16_, layout::LayOutParameters(model_bf16_, {LayerId(1)}, {.num_versions = 2}),
          *backend_)
          .value();
  const ParameterRef& bias = store->Layer(LayerId(1)).refs[kBias];
  for (const float value : {3.0F, 1 + 0x1p-9F}) {  // bf16 has the first one
    store->BeginUpdate();
    std::fill_n(bias.weight, bias.elements(), value);
    ASSERT_TRUE(store->Pack(*backend_).ok());
  }
  EXPECT_EQ(bias.packed_transposed, nullptr);
  for (std::int64_t i = 0; i < bias.elements(); ++i)
    ASSERT_EQ(backend::ToFloat(bias.packed[i]), 1) << "element " << i;
  store->SelectVersion(1);
  EXPECT_EQ(backend::ToFloat(bias.packed[0]), 3);
}

// A matrix that is kept as it is stored has rows of zeros behind it.
TEST_F(PackedWeights, HaveMatricesThatAreKeptRounded) {
  model::Parameter& head = model_bf16_.layers[0].parameters[0];  // tied
  ASSERT_TRUE(head.by_word);
  head.kept_rounded = true;
  const std::int64_t columns = head.shape[1], zeros = 8 - head.shape[0] % 8;
  ASSERT_LT(zeros, 8);
  const LayerId last(static_cast<std::int32_t>(model_bf16_.layers.size()) - 1);
  const auto store =
      ParameterStore::Create(model_bf16_, layout::LayOutParameters(model_bf16_, {last}), *backend_)
          .value();
  const ParameterRef& ref = store->Layer(last).refs.back();
  EXPECT_EQ(ref.packed_transposed, nullptr);
  std::fill_n(ref.weight, ref.elements(), 1 + 0x1p-9F);
  ASSERT_TRUE(store->Pack(*backend_).ok());
  for (std::int64_t i = 0; i < ref.elements() + zeros * columns; ++i)
    ASSERT_EQ(backend::ToFloat(ref.packed[i]), i < ref.elements() ? 1 : 0) << "element " << i;
}

TEST_F(PackedWeights, AreNotMadeAgainWhereTheUpdateRoundsThem) {
  constexpr std::size_t kMatrix = 2, kBias = 3;  // c_attn
  std::vector<model::Parameter>& parameters = model_bf16_.layers[1].parameters;
  parameters[kMatrix].kept_rounded = parameters[kBias].kept_rounded = true;
  parameters[kBias].by_muon = true;  // no update rounds it
  const auto store =
      ParameterStore::Create(model_bf16_, layout::LayOutParameters(model_bf16_, {LayerId(1)}),
                             *backend_)
          .value();
  const std::vector<ParameterRef>& refs = store->Layer(LayerId(1)).refs;
  EXPECT_TRUE(refs[kMatrix].is_rounded_by_update());
  EXPECT_FALSE(refs[kBias].is_rounded_by_update());
  EXPECT_FALSE(refs[0].is_rounded_by_update());
  for (const std::size_t i : {kMatrix, kBias}) refs[i].weight[0] = 3;
  ASSERT_TRUE(store->PackAfterUpdate(*backend_, /*version=*/0).ok());
  EXPECT_EQ(backend::ToFloat(refs[kMatrix].packed[0]), 0);
  EXPECT_EQ(backend::ToFloat(refs[kBias].packed[0]), 3);
  ASSERT_TRUE(store->Pack(*backend_).ok());
  EXPECT_EQ(backend::ToFloat(refs[kMatrix].packed[0]), 3);
}

// An update of the embedding's table rounds it where the head reads it.
TEST_F(PackedWeights, OfATiedTableAreRoundedByTheUpdateOfTheOther) {
  model_bf16_.layers[0].parameters[0].kept_rounded = true;
  const auto store =
      ParameterStore::Create(
          model_bf16_,
          layout::LayOutParameters(model_bf16_, {LayerId(0), LayerId(3)}, {.num_versions = 2}),
          *backend_)
          .value();
  const auto [own, tied] = store->tied_uses();
  for (const int version : {0, 1}) {
    store->SelectVersion(version);
    EXPECT_TRUE(own->is_rounded_by_update());
    EXPECT_FALSE(tied->is_rounded_by_update());
    EXPECT_EQ(own->rounded, tied->packed);
    EXPECT_NE(own->rounded, nullptr);
  }
  store->SelectVersion(0);
  own->weight[0] = 3;
  ASSERT_TRUE(store->PackAfterUpdate(*backend_, /*version=*/0).ok());
  EXPECT_EQ(backend::ToFloat(tied->packed[0]), 0);
}

TEST_F(PackedWeights, AreThoseOfTheSelectedVersionAndItsTranspose) {
  const ParameterRef& ref = store_->Layer(LayerId(1)).refs[2];  // c_attn.weight
  const std::int64_t rows = ref.parameter->shape[0], columns = ref.parameter->shape[1];
  for (const float first : {1.0F, 2.0F}) {
    store_->BeginUpdate();
    for (std::int64_t i = 0; i < ref.parameter->elements(); ++i) {
      ref.weight[i] = first + static_cast<float>(i % 7);
    }
    ASSERT_TRUE(store_->Pack(*backend_).ok());
  }
  for (const int version : {0, 1}) {
    store_->SelectVersion(version);
    EXPECT_EQ(ref.weight[0], 2 - static_cast<float>(version));
    const std::vector<float> row = FirstRow(ref.packed, rows, columns);
    const std::vector<float> column = FirstRow(ref.packed_transposed, columns, rows);
    for (std::int64_t i = 0; i < columns; ++i) EXPECT_EQ(row[i], ref.weight[i]);
    for (std::int64_t i = 0; i < rows; ++i) EXPECT_EQ(column[i], ref.weight[i * columns]);
  }
}

// The scales of a weight are those of its values, whichever version and order they are in.
TEST_F(PackedWeights, OfBlocksAreRoundedToFp8IfTheModelAsksForIt) {
  model_bf16_.precisions.fp8 = model::Fp8Recipe::kTensor;
  std::vector<LayerId> all;
  for (int id = 0; id < static_cast<int>(model_bf16_.layers.size()); ++id)
    all.push_back(LayerId(id));
  const auto store =
      ParameterStore::Create(model_bf16_, layout::LayOutParameters(model_bf16_, all), *backend_)
          .value();
  for (const LayerParameters& layer : store->layers()) {
    const bool is_block =
        model_bf16_.layers[static_cast<std::size_t>(layer.layer.value())].block >= 0;
    for (const ParameterRef& ref : layer.refs) {
      EXPECT_EQ(ref.fp8 != backend::Fp8Scaling::kNone, is_block) << ref.parameter->name;
      std::fill_n(ref.weight, ref.elements(), 0.0F);
    }
  }
  const ParameterRef& block = store->Layer(LayerId(1)).refs[2];  // c_attn.weight
  const ParameterRef& head = store->Layer(LayerId(3)).refs.back();
  for (const ParameterRef* const ref : {&block, &head}) {
    ref->weight[0] = 1.0625F;  // bf16 has it, and E4M3 has 1 and 1.125
    ref->weight[1] = 448;
  }
  ASSERT_TRUE(store->Pack(*backend_).ok());
  const auto first = [&](const ParameterRef& ref, bool transposed) {
    const std::int64_t rows = ref.parameter->shape[0], columns = ref.parameter->shape[1];
    return transposed ? FirstRow(ref.packed_transposed, columns, rows)[0]
                      : FirstRow(ref.packed, rows, columns)[0];
  };
  for (const bool transposed : {false, true}) {
    EXPECT_EQ(first(block, transposed), 1);
    EXPECT_EQ(first(head, transposed), 1.0625F);
  }
}

TEST_F(ParameterStoreTest, HoldsRowsBesideWhatStagesHave) {
  const model::Model model = rows_testing::ModelOfThreeBlocks();
  const layout::Section rows =
      rows_testing::LayOutRows(model, 4096, 4096, {LayerId(0), LayerId(2)});
  const auto stage = [](const model::Model& of) {
    return layout::LayOutParameters(of, {LayerId(0)}, {.spread = true});
  };
  const auto store = ParameterStore::Create(model, stage(model), *backend_, {}, rows).value();
  ASSERT_EQ(store->layers().size(), 3U);
  const LayerParameters& embedding = store->Layer(LayerId(0));
  ASSERT_EQ(embedding.refs.size(), 1U);
  EXPECT_FALSE(embedding.refs[0].parameter->by_word);
  EXPECT_EQ(embedding.gradients.data(), embedding.refs[0].gradient);
  const LayerParameters* const own = store->Rows(LayerId(0));
  const LayerParameters* const tied = store->Rows(LayerId(2));
  ASSERT_NE(own, nullptr);
  ASSERT_NE(tied, nullptr);
  EXPECT_EQ(store->Rows(LayerId(1)), nullptr);
  EXPECT_EQ(own->refs[0].weight, tied->refs[0].weight);
  EXPECT_EQ(own->gradients.size(), 4096U * 4);
  EXPECT_NE(own->gradients.data(), tied->gradients.data());
  EXPECT_EQ(store->tied_uses().own, &own->refs[0]);
  EXPECT_EQ(store->tied_uses().tied, &tied->refs[0]);
  EXPECT_EQ(store->trained().size(), 2U);

  // Llama's embedding has no other parameter.
  const model::Model llama = model::BuildModel({.family = model::Family::kLlama,
                                                .layers = 1,
                                                .hidden = 4,
                                                .heads = 1,
                                                .kv_heads = 1,
                                                .head_size = 4,
                                                .inner = 16,
                                                .context = 3,
                                                .positions = 3,
                                                .vocab = 10000,
                                                .tied_head = false},
                                               /*microbatch=*/2)
                                 .value();
  const auto nothing =
      ParameterStore::Create(llama, stage(llama), *backend_, {},
                             rows_testing::LayOutRows(llama, 4096, 4096, {LayerId(0)}))
          .value();
  EXPECT_TRUE(nothing->Layer(LayerId(0)).refs.empty());
  EXPECT_NE(nothing->Rows(LayerId(0)), nullptr);
}

// The head is layer 2.
TEST_F(PackedWeights, OfARunOfRowsAreThoseOfItsBlocksOfWords) {
  model::Model model = rows_testing::ModelOfThreeBlocks();
  model.precisions.products = model::Precision::kBf16;
  const auto store =
      ParameterStore::Create(
          model, rows_testing::LayOutRows(model, 4096, 5904, {LayerId(0), LayerId(2)}), *backend_)
          .value();
  ASSERT_EQ(store->layers().size(), 2U);
  ASSERT_EQ(store->Layer(LayerId(0)).refs.size(), 1U);  // the position table is elsewhere
  ASSERT_EQ(store->Layer(LayerId(2)).refs.size(), 1U);  // as the norm is
  const ParameterRef& own = store->Layer(LayerId(0)).refs[0];
  const ParameterRef& tied = store->Layer(LayerId(2)).refs[0];
  EXPECT_EQ(own.weight, tied.weight);
  EXPECT_EQ(own.norm_index, 1);
  EXPECT_EQ(tied.norm_index, -1);
  EXPECT_EQ(own.first_element(), 4096 * 4);
  EXPECT_EQ(own.elements(), 5904 * 4);
  for (std::int64_t i = 0; i < own.elements(); ++i) own.weight[i] = static_cast<float>(i % 251);
  ASSERT_TRUE(store->Pack(*backend_).ok());
  for (const auto& [first, rows] : {model::VocabularyBlock{.first = 0, .words = 4096},
                                    model::VocabularyBlock{.first = 4096, .words = 1808}}) {
    const std::vector<float> row =
        FirstRow(tied.packed + layout::PackedElements(first, 4), rows, 4);
    const std::vector<float> column =
        FirstRow(tied.packed_transposed + layout::PackedElements(4, first), 4, rows);
    for (std::int64_t i = 0; i < 4; ++i) EXPECT_EQ(row[i], own.weight[first * 4 + i]);
    for (std::int64_t i = 0; i < rows; ++i) EXPECT_EQ(column[i], own.weight[(first + i) * 4]);
  }
}

}  // namespace
}  // namespace takt::train
