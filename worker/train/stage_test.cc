// SPDX-License-Identifier: Apache-2.0
#include "worker/train/stage.h"
#include "worker/backend/cpu/cpu_backend.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "common/layout/parameter_layout.h"
#include "common/model/llama.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::train {
namespace {

// The sizes make every tensor a whole number of cache lines, so it follows the same tensor of the
// slot before.
constexpr int kTokenRows = 16;

model::ModelConfig SmallGpt2() {
  return {.layers = 2,
          .hidden = 6,
          .heads = 2,
          .kv_heads = 2,
          .inner = 24,
          .context = kTokenRows / 2,
          .positions = 10,
          .vocab = 11};
}

// All layers of a tiny model as one stage.
class StageTest : public ::testing::Test {
 protected:
  StageTest() : StageTest(SmallGpt2()) {}
  explicit StageTest(const model::ModelConfig& config)
      : model_(model::BuildModel(config, 2).value()) {
    std::vector<LayerId> layers;
    for (int i = 0; i < static_cast<int>(model_.layers.size()); ++i) layers.push_back(LayerId(i));
    parameters_ =
        ParameterStore::Create(model_, layout::LayOutParameters(model_, layers), *backend_).value();
    std::mt19937 random(1);
    std::normal_distribution<float> normal(0, 0.3F);
    for (const LayerParameters& layer : parameters_->layers()) {
      for (const ParameterRef& ref : layer.refs) {
        if (ref.m == nullptr) continue;
        for (std::int64_t i = 0; i < ref.parameter->elements(); ++i) ref.weight[i] = normal(random);
      }
    }
    stash_ = backend_->Allocate(layout_.stash_bytes, MemoryKind::kStash).value();
    scratch_ = backend_->Allocate(layout_.scratch_bytes, MemoryKind::kScratch).value();
    stage_.emplace(StageOptions{.model = model_,
                                .layout = layout_,
                                .parameters = *parameters_,
                                .backend = *backend_,
                                .scratch = scratch_.data(),
                                .rotary_table = rotary_table_.data()});
    for (int i = 0; i < kTokenRows; ++i) {
      tokens_.push_back(i % 11);
      targets_.push_back(i % 4 == 1 ? backend::kIgnoredTarget : (i * 7 + 3) % 11);
    }
  }

  StageBuffers Buffers() const {
    return {.view = {.tokens = tokens_.data(), .targets = targets_.data()}, .stash = stash_.data()};
  }
  double Loss() {
    double loss = 0;
    EXPECT_TRUE(stage_->Forward(Buffers(), {.sum = &loss, .scale = 1}).ok());
    return loss;
  }
  std::vector<float> Gradients() const {
    std::vector<float> all;
    for (const LayerParameters& layer : parameters_->layers()) {
      for (const ParameterRef& ref : layer.refs) {
        all.insert(all.end(), ref.gradient, ref.gradient + ref.parameter->elements());
      }
    }
    return all;
  }

  void ExpectGradientsOfDifferences();

  const model::Model model_;
  const std::vector<float> rotary_table_ = model::RotaryTable(model_.config);
  const layout::StageLayout layout_ =
      layout::LayOutStage(model_, {StageId(0), PpRank(0), LayerId(0), LayerId(4)});
  const std::unique_ptr<backend::Backend> backend_ = backend::CreateCpuBackend({}).value();
  std::unique_ptr<ParameterStore> parameters_;
  std::optional<Stage> stage_;
  backend::Buffer stash_, scratch_;
  std::vector<std::int32_t> tokens_, targets_;
};

// The tolerance of central differences of the f32 loss sum (about 30) with h = 2^-7: rounding is 30
// * 2^-24 / h = 2.3e-4, and the method's error is h^2 / 6 times a third derivative of order 1 to
// 10.
void StageTest::ExpectGradientsOfDifferences() {
  Loss();
  ASSERT_TRUE(stage_->InputGrad(Buffers()).ok());
  ASSERT_TRUE(stage_->WeightGrad(std::vector{Buffers()}, false).ok());
  const auto [own, tied] = parameters_->tied_uses();
  constexpr float kStep = 1.0F / 128;
  for (const LayerParameters& layer : parameters_->layers()) {
    for (const ParameterRef& ref : layer.refs) {
      if (ref.m == nullptr) continue;
      for (std::int64_t i = 0; i < ref.parameter->elements();
           i += 1 + ref.parameter->elements() / 5) {
        const float saved = ref.weight[i];
        ref.weight[i] = saved + kStep;
        const double up = Loss();
        ref.weight[i] = saved - kStep;
        const double down = Loss();
        ref.weight[i] = saved;
        double gradient = ref.gradient[i];
        if (&ref == own && tied != nullptr) gradient += tied->gradient[i];
        EXPECT_NEAR(gradient, (up - down) / (2 * kStep), 3e-3 + 3e-3 * std::abs(gradient))
            << ref.parameter->name << "[" << i << "]";
      }
    }
  }
}

TEST_F(StageTest, GradientsAgreeWithFiniteDifferences) { ExpectGradientsOfDifferences(); }

// Shapes that no golden model has. No difference changes what a router chooses.
struct FamilyCase {
  const char* name;
  model::ModelConfig config;
};
std::vector<FamilyCase> FamilyCases() {
  model::ModelConfig llama = SmallGpt2();
  llama.family = model::Family::kLlama;
  llama.hidden = 8;
  llama.inner = 20;
  llama.tied_head = false;
  llama.kv_heads = 1;
  model::ModelConfig qwen2 = llama, qwen3 = llama, mistral = llama, mixtral = llama, moe = llama;
  qwen2.family = model::Family::kQwen2;
  qwen3.family = model::Family::kQwen3;
  qwen3.head_size = 6;
  mistral.family = model::Family::kMistral;
  mistral.attention_window = 3;
  mixtral.family = model::Family::kMixtral;
  mixtral.mixture = model::Mixture{.experts = 3, .chosen = 2, .inner = 20};
  moe.family = model::Family::kQwen3Moe;
  moe.mixture = model::Mixture{
      .experts = 5, .chosen = 2, .inner = 10, .normalised = false, .dense_blocks = {1}};
  return {{"llama", llama},     {"qwen2", qwen2},     {"qwen3", qwen3},
          {"mistral", mistral}, {"mixtral", mixtral}, {"qwen3_moe", moe}};
}

class FamilyTest : public StageTest, public ::testing::WithParamInterface<FamilyCase> {
 protected:
  FamilyTest() : StageTest(GetParam().config) {}
};

TEST_P(FamilyTest, GradientsAgreeWithFiniteDifferences) { ExpectGradientsOfDifferences(); }

INSTANTIATE_TEST_SUITE_P(All, FamilyTest, ::testing::ValuesIn(FamilyCases()),
                         [](const auto& info) { return info.param.name; });

TEST_F(StageTest, AccumulatesOverMicrobatches) {
  for (const bool accumulate : {false, true, true}) {
    Loss();
    ASSERT_TRUE(stage_->InputGrad(Buffers()).ok());
    ASSERT_TRUE(stage_->WeightGrad(std::vector{Buffers()}, accumulate).ok());
  }
  const std::vector<float> three = Gradients();
  Loss();
  ASSERT_TRUE(stage_->InputGrad(Buffers()).ok());
  ASSERT_TRUE(stage_->WeightGrad(std::vector{Buffers()}, false).ok());
  const std::vector<float> one = Gradients();
  double largest = 0;
  for (std::size_t i = 0; i < one.size(); ++i) {
    EXPECT_NEAR(three[i], 3 * one[i], 1e-5 + 1e-5 * std::abs(three[i])) << i;
    largest = std::max<double>(largest, std::abs(one[i]));
  }
  EXPECT_GT(largest, 0.1);
}

// Three microbatches in rooms that they share, in neighbouring slots and in others.
TEST_F(StageTest, WeightGradientsOfSeveralMicrobatchesTogetherAreTheirSum) {
  constexpr std::int64_t kSlots = 4;
  const backend::Buffer memory =
      backend_->Allocate(kSlots * stage_->layout().stash_bytes, MemoryKind::kStash).value();
  for (const std::vector<std::int64_t>& slots : {std::vector<std::int64_t>{1, 2, 3}, {3, 0, 1}}) {
    std::vector<StageBuffers> microbatches;
    std::vector<std::vector<std::int32_t>> targets;
    for (std::size_t m = 0; m < slots.size(); ++m) {
      targets.push_back(targets_);
      std::vector<std::int32_t>& rotated = targets.back();
      std::rotate(rotated.begin(), rotated.begin() + static_cast<int>(m), rotated.end());
      microbatches.push_back(Buffers());
      microbatches.back().view.targets = targets.back().data();
      microbatches.back().stash = {memory.data(), {kSlots, slots[m]}};
    }
    double loss = 0;
    for (const StageBuffers& each : microbatches) {
      ASSERT_TRUE(stage_->Forward(each, {.sum = &loss, .scale = 1}).ok());
      ASSERT_TRUE(stage_->InputGrad(each).ok());
    }
    for (std::size_t m = 0; m < microbatches.size(); ++m)
      ASSERT_TRUE(stage_->WeightGrad({&microbatches[m], 1}, m > 0).ok());
    const std::vector<float> apart = Gradients();
    ASSERT_TRUE(stage_->WeightGrad(microbatches, false).ok());
    const std::vector<float> together = Gradients();
    // W of several microbatches makes one sum over all rows instead of three. The roundings of
    // partial sums are each at most 2^-24 of the sum of magnitudes, which here is below 10 times
    // the largest gradient.
    float largest = 0;
    for (const float gradient : apart) largest = std::max(largest, std::abs(gradient));
    for (std::size_t i = 0; i < apart.size(); ++i)
      ASSERT_NEAR(together[i], apart[i], largest * 10 * 3 * kTokenRows * 0x1p-24) << i;
    EXPECT_GT(largest, 0.1);
  }
}

// Compares two microbatches that run one after the other with an overlap, where the layers of the
// second one's F run between those of the first one's B.
TEST_F(StageTest, LayersInTurnsLeaveTheSameBitsAsApart) {
  const backend::Buffer other_stash =
      backend_->Allocate(stage_->layout().stash_bytes, MemoryKind::kStash).value();
  std::vector<std::int32_t> other_targets(targets_.rbegin(), targets_.rend());
  const StageBuffers first = Buffers();
  StageBuffers second{.microbatch = MicrobatchId(1),
                      .view = {.tokens = tokens_.data(), .targets = other_targets.data()},
                      .stash = other_stash.data()};
  double loss_apart = 0, loss_in_turns = 0;
  LossCall loss{.sum = &loss_apart, .scale = 1};
  Loss();
  ASSERT_TRUE(stage_->InputGrad(first).ok());
  ASSERT_TRUE(stage_->WeightGrad({&first, 1}, false).ok());
  ASSERT_TRUE(stage_->Forward(second, loss).ok());
  ASSERT_TRUE(stage_->InputGrad(second).ok());
  ASSERT_TRUE(stage_->WeightGrad({&second, 1}, true).ok());
  const std::vector<float> apart = Gradients();

  Loss();
  loss.sum = &loss_in_turns;
  const std::size_t layers = stage_->num_layers();
  ASSERT_EQ(layers, 4U);
  for (std::size_t i = 0; i < layers; ++i) {
    ASSERT_TRUE(stage_->ForwardLayer(second, loss, i).ok());
    ASSERT_TRUE(stage_->BackwardLayer(first, false, layers - 1 - i).ok());
  }
  ASSERT_TRUE(stage_->InputGrad(second).ok());
  ASSERT_TRUE(stage_->WeightGrad({&second, 1}, true).ok());
  EXPECT_EQ(loss_in_turns, loss_apart);
  EXPECT_EQ(Gradients(), apart);
}

}  // namespace
}  // namespace takt::train
