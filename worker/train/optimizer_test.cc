// SPDX-License-Identifier: Apache-2.0
#include "worker/train/optimizer.h"
#include "worker/backend/cpu/cpu_backend.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/layout/parameter_layout.h"
#include "common/model/muon.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/train/rows_testing.h"

namespace takt::train {
namespace {

// A group whose other ranks contribute `others`.
class FakeGroup final : public transport::Collective {
 public:
  explicit FakeGroup(std::vector<double> others) : others_(std::move(others)) {}
  int size() const override { return 2; }
  int index() const override { return 0; }
  absl::Status AllReduceSum(StepId, std::span<float>) override {
    return absl::InternalError("not expected");
  }
  absl::Status AllReduceSum(StepId, std::span<double> data) override {
    sent_.assign(data.begin(), data.end());
    for (std::size_t i = 0; i < data.size(); ++i) data[i] += others_.at(i);
    return absl::OkStatus();
  }
  const std::vector<double>& sent() const { return sent_; }

 private:
  const std::vector<double> others_;
  std::vector<double> sent_;
};

class OptimizerTest : public ::testing::Test {
 protected:
  OptimizerTest() {
    job_.adamw = {.learning_rate = 0.1,
                  .beta1 = 0,
                  .beta2 = 0,
                  .epsilon = 0,
                  .weight_decay = 0.5,
                  .clip_norm = 0};
  }

  void SetGradients(float value) {
    for (const LayerParameters& layer : parameters_->layers()) {
      for (const ParameterRef& ref : layer.refs) {
        std::fill_n(ref.gradient, ref.parameter->elements(), value);
        if (ref.m != nullptr) std::fill_n(ref.weight, ref.parameter->elements(), 2.0F);
      }
    }
  }

  config::JobSpec job_;
  const model::Model model_ = model::BuildModel({.layers = 1,
                                                 .hidden = 4,
                                                 .heads = 1,
                                                 .kv_heads = 1,
                                                 .inner = 16,
                                                 .context = 3,
                                                 .positions = 3,
                                                 .vocab = 5},
                                                1)
                                  .value();
  const std::unique_ptr<backend::Backend> backend_ = backend::CreateCpuBackend({}).value();
  const layout::Section layout_ =
      layout::LayOutParameters(model_, {LayerId(0), LayerId(1), LayerId(2)});
  const std::unique_ptr<ParameterStore> parameters_ =
      ParameterStore::Create(model_, layout_, *backend_).value();
};

TEST_F(OptimizerTest, NormIsOverAllParametersATiedOneOnce) {
  Optimizer optimizer = Optimizer::Create(job_, model_, *parameters_, {}).value();
  SetGradients(3);
  ASSERT_TRUE(optimizer.NormPartial(*backend_).ok());
  const StepResult result =
      optimizer.Exchange(StepId(1), {.sum = 14, .scored = 7, .known = true}).value();
  EXPECT_DOUBLE_EQ(result.grad_norm, 3 * std::sqrt(static_cast<double>(model_.num_parameters())));
  EXPECT_EQ(result.loss, 2);
  EXPECT_EQ(result.tokens, 7);
  EXPECT_EQ(result.learning_rate, 0.1);
}

TEST_F(OptimizerTest, SecondCopiesCountNeitherInTheNormNorInTheLoss) {
  const auto copies =
      ParameterStore::Create(model_, layout_, *backend_, {LayerId(0), LayerId(2)}).value();
  for (const LayerParameters& layer : copies->layers()) {
    EXPECT_EQ(layer.primary, layer.layer == LayerId(1));
    for (const ParameterRef& ref : layer.refs) {
      std::fill_n(ref.gradient, ref.parameter->elements(), 3.0F);
    }
  }
  std::int64_t counted = 0;
  for (const ParameterRef& ref : copies->Layer(LayerId(1)).refs)
    counted += ref.parameter->elements();

  FakeGroup holders({6, 0});
  Optimizer optimizer =
      Optimizer::Create(job_, model_, *copies, {.last_stage = &holders, .tells_loss = false})
          .value();
  ASSERT_TRUE(optimizer.NormPartial(*backend_).ok());
  const StepResult result =
      optimizer.Exchange(StepId(1), {.sum = 4, .scored = 5, .known = true}).value();
  EXPECT_THAT(holders.sent(), ::testing::ElementsAre(4, 0));
  EXPECT_DOUBLE_EQ(result.grad_norm, 3 * std::sqrt(static_cast<double>(counted)));
  EXPECT_EQ(result.tokens, 0);
  EXPECT_EQ(result.loss, 0);
}

TEST_F(OptimizerTest, SumsLossOverReplicasAndNormOverThePipeline) {
  FakeGroup dp({6, 0});
  std::vector<double> others(model_.AllParameters().size() + 3);
  others[0] = 100;
  FakeGroup pp(others);
  Optimizer optimizer =
      Optimizer::Create(job_, model_, *parameters_, {.last_stage = &dp, .pipeline = &pp}).value();
  SetGradients(0);
  ASSERT_TRUE(optimizer.NormPartial(*backend_).ok());
  const StepResult result =
      optimizer.Exchange(StepId(1), {.sum = 4, .scored = 5, .known = true}).value();
  EXPECT_THAT(dp.sent(), ::testing::ElementsAre(4, 0));
  EXPECT_EQ(result.grad_norm, 10);
  EXPECT_EQ(result.loss, 2);  // (4 + 6) / 5: scored tokens already count the global batch
}

TEST_F(OptimizerTest, ThatARankWasAskedToHaltIsKnownOnAllRanksInTheSameStep) {
  // The halt was asked of this rank, of another that holds the last stage, or of the pipeline's
  // rank that passes the loss on; or of none.
  struct Case {
    double own, replica, teller;
  };
  for (const Case& c : {Case{1, 0, 0}, Case{0, 1, 0}, Case{0, 0, 1}, Case{0, 0, 0}}) {
    FakeGroup dp({0, c.replica});
    std::vector<double> others(model_.AllParameters().size() + 3);
    others.back() = c.teller;
    FakeGroup pp(others);
    Optimizer optimizer =
        Optimizer::Create(job_, model_, *parameters_, {.last_stage = &dp, .pipeline = &pp}).value();
    const LossShare share{.halting = c.own, .known = true};
    EXPECT_EQ(optimizer.Exchange(StepId(1), share)->halt,
              c.own + c.replica + c.teller > 0 ? HaltRequest::kSaving : HaltRequest::kNone);
  }
  // A rank that does not hold the last stage cannot tell the other pipelines, so it tells no rank.
  Optimizer elsewhere = Optimizer::Create(job_, model_, *parameters_, {}).value();
  EXPECT_EQ(elsewhere.Exchange(StepId(1), {.halting = 1})->halt, HaltRequest::kNone);
}

TEST_F(OptimizerTest, ClipsToTheNormAndDecaysMatricesOnly) {
  // With beta 0 the update is lr * sign(gradient). So the clipping is seen through epsilon: m /
  // (sqrt(v) + epsilon) = g / (|g| + epsilon).
  job_.adamw.epsilon = 1;
  job_.adamw.clip_norm = 1;
  Optimizer optimizer = Optimizer::Create(job_, model_, *parameters_, {}).value();
  SetGradients(3);
  ASSERT_TRUE(optimizer.NormPartial(*backend_).ok());
  const double norm = optimizer.Exchange(StepId(1), {}).value().grad_norm;
  ASSERT_TRUE(optimizer.Update(*backend_, StepId(1), 1).ok());
  const double g = 3 / (norm + 1e-6);
  const double update = 0.1 * g / (g + 1);
  for (const LayerParameters& layer : parameters_->layers()) {
    for (const ParameterRef& ref : layer.refs) {
      const double decayed = ref.parameter->shape.size() >= 2 ? 2 * (1 - 0.1 * 0.5) : 2;
      EXPECT_NEAR(ref.weight[0], decayed - update, 1e-6) << ref.parameter->name;
    }
  }
}

TEST_F(OptimizerTest, LionMovesBySignsAndSgdByMomentum) {
  const auto weight_after = [&](int steps) {
    Optimizer optimizer = Optimizer::Create(job_, model_, *parameters_, {}).value();
    SetGradients(3);
    for (const ParameterRef* const ref : parameters_->trained())
      std::fill_n(ref->m, ref->elements(), 0.0F);
    for (int step = 1; step <= steps; ++step) {
      EXPECT_TRUE(optimizer.NormPartial(*backend_).ok());
      EXPECT_TRUE(optimizer.Exchange(StepId(step), {}).ok());
      EXPECT_TRUE(optimizer.Update(*backend_, StepId(step), step).ok());
    }
    return parameters_->Layer(LayerId(2)).refs[1].weight[0];  // a bias, which does not decay
  };
  job_.lion = config::Lion{.learning_rate = 0.25, .clip_norm = 1e-3};
  EXPECT_NEAR(weight_after(1), 2 - 0.25, 1e-6);
  EXPECT_NEAR(weight_after(2), 2 - 2 * 0.25, 1e-6);
  job_.lion = std::nullopt;
  job_.sgd = config::Sgd{.learning_rate = 0.125, .momentum = 0.5, .clip_norm = 0};
  EXPECT_NEAR(weight_after(1), 2 - 0.125 * 3, 1e-6);
  EXPECT_NEAR(weight_after(2), 2 - 0.125 * (3 + 4.5), 1e-6);
  job_.sgd->momentum = 0;
  EXPECT_NEAR(weight_after(2), 2 - 2 * 0.125 * 3, 1e-6);
  job_.sgd->clip_norm = 1;
  const double norm = 3 * std::sqrt(static_cast<double>(model_.num_parameters()));
  EXPECT_NEAR(weight_after(1), 2 - 0.125 * 3 / norm, 1e-6);
}

// Muon moves the matrices of blocks by its own rate, whatever the size of their gradients, and
// AdamW everything else by its own.
TEST_F(OptimizerTest, MuonMovesMatricesAndAdamwTheRest) {
  job_.muon = config::Muon{
      .learning_rate = 0.5,
      .momentum = 0.5,
      .weight_decay = 0.25,
      .clip_norm = 0,
      .adamw = {.learning_rate = 0.125, .beta1 = 0, .beta2 = 0, .epsilon = 0, .weight_decay = 0}};
  job_.model = model_.config;
  const model::Model model = *config::BuildModelOf(job_, 1, config::DeviceKind::kCpu);
  const auto store =
      ParameterStore::Create(
          model, layout::LayOutParameters(model, {LayerId(0), LayerId(1), LayerId(2)}), *backend_)
          .value();
  std::vector<float> scratch(static_cast<std::size_t>(model::MuonScratchFloats(4, 16)));
  Optimizer optimizer = Optimizer::Create(job_, model, *store, {}).value();
  optimizer.UseScratch(reinterpret_cast<std::byte*>(scratch.data()));
  for (const ParameterRef* const ref : store->trained()) {
    EXPECT_EQ(ref->v == nullptr, ref->parameter->by_muon) << ref->parameter->name;
    std::fill_n(ref->weight, ref->elements(), 2.0F);
    std::fill_n(ref->gradient, ref->elements(), 3.0F);
    std::fill_n(ref->m, ref->elements(), 0.0F);
  }
  ASSERT_TRUE(optimizer.Update(*backend_, StepId(1), 1).ok());
  int matrices = 0;
  for (const ParameterRef* const ref : store->trained()) {
    if (!ref->parameter->by_muon) {
      EXPECT_NEAR(ref->weight[0], 2 - 0.125, 1e-6) << ref->parameter->name;
      continue;
    }
    ++matrices;
    // A matrix of equal numbers has one singular value, which five iterations bring from 1 to
    // 0.696.
    const auto rows = static_cast<double>(ref->parameter->shape[0]);
    const auto columns = static_cast<double>(ref->parameter->shape[1]);
    const double size = 0.2 * std::sqrt(std::max(rows, columns));
    const double element = 0.69644 / std::sqrt(rows * columns);
    EXPECT_NEAR(ref->weight[0], 2 * (1 - 0.5 * 0.25) - 0.5 * size * element, 1e-4)
        << ref->parameter->name;
  }
  EXPECT_EQ(matrices, 4);
}

// Fills weights, gradients and moments with numbers that differ.
void FillAll(const ParameterStore& store) {
  int number = 0;
  for (const ParameterRef* const ref : store.trained()) {
    for (std::int64_t i = 0; i < ref->elements(); ++i) {
      const auto x = static_cast<float>(++number % 97);
      ref->weight[i] = 0.1F * x - 3;
      ref->gradient[i] = 5 - 0.17F * x;
      if (ref->m != nullptr) ref->m[i] = 0.01F * x;
      if (ref->v != nullptr) ref->v[i] = 0.02F * x;
    }
  }
}

std::vector<float> WeightsOf(const ParameterStore& store) {
  std::vector<float> values;
  for (const ParameterRef* const ref : store.trained())
    values.insert(values.end(), ref->weight, ref->weight + ref->elements());
  return values;
}

std::vector<float> MomentsOf(const ParameterStore& store) {
  std::vector<float> values;
  for (const ParameterRef* const ref : store.trained()) {
    for (const std::span<float> each : {ref->moment(ref->m), ref->moment(ref->v)})
      values.insert(values.end(), each.begin(), each.end());
  }
  return values;
}

TEST_F(OptimizerTest, ForeseesTheBitsOfTheUpdateAndLeavesMoments) {
  for (const int optimizer : {0, 1, 2, 3}) {
    for (const double clip_norm : {0.0, 1.0}) {
      SCOPED_TRACE(std::to_string(optimizer) + " clip " + std::to_string(clip_norm));
      config::JobSpec job = job_;
      job.adamw = {.clip_norm = clip_norm};
      job.model = model_.config;
      if (optimizer == 1) job.lion = config::Lion{.clip_norm = clip_norm};
      if (optimizer == 2) job.sgd = config::Sgd{.nesterov = true, .clip_norm = clip_norm};
      if (optimizer == 3) job.muon = config::Muon{.clip_norm = clip_norm};
      const model::Model model = *config::BuildModelOf(job, 1, config::DeviceKind::kCpu);
      const auto store = ParameterStore::Create(
                             model,
                             layout::LayOutParameters(model, {LayerId(0), LayerId(1), LayerId(2)},
                                                      {.foresees = true}),
                             *backend_)
                             .value();
      std::vector<float> scratch(static_cast<std::size_t>(model::MuonScratchFloats(4, 16)));
      Optimizer updates = Optimizer::Create(job, model, *store, {}).value();
      updates.UseScratch(reinterpret_cast<std::byte*>(scratch.data()));
      FillAll(*store);
      const std::vector<float> weights = WeightsOf(*store), moments = MomentsOf(*store);
      ASSERT_TRUE(updates.NormPartial(*backend_).ok());
      ASSERT_TRUE(updates.Exchange(StepId(3), {.sum = 1, .scored = 1, .known = true}).ok());
      EXPECT_EQ(updates.ClipFactor() < 1, clip_norm > 0);
      ASSERT_TRUE(updates.Foresee(*backend_, StepId(3), 3, /*knows_norm=*/clip_norm > 0).ok());
      const std::vector<float> foreseen = WeightsOf(*store);
      EXPECT_EQ(MomentsOf(*store), moments);
      store->SelectVersion(0);
      EXPECT_EQ(WeightsOf(*store), weights);
      ASSERT_TRUE(updates.Update(*backend_, StepId(3), 3).ok());
      EXPECT_EQ(WeightsOf(*store), foreseen);
      EXPECT_NE(foreseen, weights);
      EXPECT_NE(MomentsOf(*store), moments);
    }
  }
}

// A norm that is not a number clips nothing, and an infinite one clips all.
TEST_F(OptimizerTest, ClipsByNormsThatAreNotFinite) {
  job_.adamw.clip_norm = 1;
  Optimizer optimizer = Optimizer::Create(job_, model_, *parameters_, {}).value();
  const auto factor_of = [&](float gradient) {
    SetGradients(gradient);
    EXPECT_TRUE(optimizer.NormPartial(*backend_).ok());
    EXPECT_TRUE(optimizer.Exchange(StepId(1), {.sum = 1, .scored = 1, .known = true}).ok());
    return optimizer.ClipFactor();
  };
  EXPECT_EQ(factor_of(0), 1);
  EXPECT_LT(factor_of(3), 1);
  EXPECT_EQ(factor_of(std::numeric_limits<float>::quiet_NaN()), 1);
  EXPECT_EQ(factor_of(std::numeric_limits<float>::infinity()), 0);
}

// Without moments a weight is still updated once, where it lies.
TEST_F(OptimizerTest, TrainsWeightsThatHaveNoMoments) {
  model::Model model = model_;
  for (model::Layer& layer : model.layers) {
    for (model::Parameter& parameter : layer.parameters) parameter.moments = 0;
  }
  const auto store =
      ParameterStore::Create(
          model, layout::LayOutParameters(model, {LayerId(0), LayerId(1), LayerId(2)}), *backend_)
          .value();
  EXPECT_EQ(store->trained().size(), parameters_->trained().size());
  job_.sgd = config::Sgd{.learning_rate = 0.125, .momentum = 0, .clip_norm = 0};
  Optimizer optimizer = Optimizer::Create(job_, model, *store, {}).value();
  for (const ParameterRef* const ref : store->trained()) {
    EXPECT_EQ(ref->m, nullptr);
    EXPECT_TRUE(ref->moment(ref->m).empty());
    std::fill_n(ref->weight, ref->elements(), 2.0F);
    std::fill_n(ref->gradient, ref->elements(), 3.0F);
  }
  ASSERT_TRUE(optimizer.Update(*backend_, StepId(1), 1).ok());
  for (const ParameterRef* const ref : store->trained())
    EXPECT_EQ(ref->weight[0], 2 - 0.125F * 3) << ref->parameter->name;
}

// The gradient of such a bias counts rows. It must not get into the norm.
TEST_F(OptimizerTest, BiasesOfRoutersMoveBySignAndHaveNoNorm) {
  model::ModelConfig config = {.family = model::Family::kMixtral,
                               .layers = 1,
                               .hidden = 4,
                               .heads = 1,
                               .kv_heads = 1,
                               .inner = 8,
                               .context = 4,
                               .positions = 4,
                               .vocab = 5,
                               .tied_head = false};
  config.mixture = model::Mixture{.experts = 3,
                                  .chosen = 1,
                                  .inner = 8,
                                  .scores = model::RouterScores::kSigmoid,
                                  .bias_rate = 0.25};
  const model::Model model = model::BuildModel(config, 1).value();
  const auto store =
      ParameterStore::Create(
          model, layout::LayOutParameters(model, {LayerId(0), LayerId(1), LayerId(2)}), *backend_)
          .value();
  job_.model = config;
  job_.global_batch = 3;  // 12 tokens, so that 4 rows are the mean
  const ParameterRef* bias = nullptr;
  for (const ParameterRef* const ref : store->trained()) {
    std::fill_n(ref->weight, ref->elements(), 2.0F);
    std::fill_n(ref->gradient, ref->elements(), 3.0F);
    if (ref->parameter->balances) bias = ref;
  }
  ASSERT_NE(bias, nullptr);
  std::ranges::copy(std::vector{4.0F, 7.0F, 1.0F}, bias->gradient);
  Optimizer optimizer = Optimizer::Create(job_, model, *store, {}).value();
  ASSERT_TRUE(optimizer.NormPartial(*backend_).ok());
  const auto counted = static_cast<double>(model.num_parameters() - 3);
  EXPECT_NEAR(optimizer.Exchange(StepId(1), {}).value().grad_norm, 3 * std::sqrt(counted), 1e-9);
  ASSERT_TRUE(optimizer.Update(*backend_, StepId(1), 1).ok());
  EXPECT_THAT(std::vector<float>(bias->weight, bias->weight + 3),
              ::testing::ElementsAre(2, 1.75F, 2.25F));
}

TEST_F(OptimizerTest, GroupsHaveTheirOwnRateAndDecay) {
  job_.adamw.epsilon = 1;
  job_.groups = {{.parameters = "transformer.wte.*", .weight_decay = 0},
                 {.parameters = "*.ln_*.weight", .learning_rate_scale = 0.5, .weight_decay = 1}};
  Optimizer optimizer = Optimizer::Create(job_, model_, *parameters_, {}).value();
  SetGradients(3);
  ASSERT_TRUE(optimizer.NormPartial(*backend_).ok());
  ASSERT_TRUE(optimizer.Exchange(StepId(1), {}).ok());
  ASSERT_TRUE(optimizer.Update(*backend_, StepId(1), 1).ok());
  const auto weight_of = [&](int layer, std::size_t index) {
    return parameters_->Layer(LayerId(layer)).refs[index].weight[0];
  };
  const double update = 0.1 * 3 / 4;
  EXPECT_NEAR(weight_of(0, 0), 2 - update, 1e-6);                       // wte
  EXPECT_NEAR(weight_of(0, 1), 2 * (1 - 0.1 * 0.5) - update, 1e-6);     // wpe
  EXPECT_NEAR(weight_of(2, 0), 2 * (1 - 0.05 * 1) - update / 2, 1e-6);  // ln_f.weight
  EXPECT_NEAR(weight_of(2, 1), 2 - update, 1e-6);                       // ln_f.bias
}

TEST_F(OptimizerTest, DoesNotClipBelowTheNormOrWithoutOne) {
  for (const double clip : {0.0, 1e6}) {
    job_.adamw.epsilon = 1;
    job_.adamw.clip_norm = clip;
    Optimizer optimizer = Optimizer::Create(job_, model_, *parameters_, {}).value();
    SetGradients(3);
    ASSERT_TRUE(optimizer.NormPartial(*backend_).ok());
    ASSERT_TRUE(optimizer.Exchange(StepId(1), {.sum = 1, .scored = 1, .known = true}).ok());
    ASSERT_TRUE(optimizer.Update(*backend_, StepId(1), 1).ok());
    const ParameterRef& bias = parameters_->Layer(LayerId(2)).refs[1];
    EXPECT_NEAR(bias.weight[0], 2 - 0.1 * 3.0 / 4.0, 1e-6);
  }
}

// Sets gradients and weights of the rows to functions of the element's number.
void FillByElement(const ParameterRef& ref) {
  for (std::int64_t i = 0; i < ref.elements(); ++i) {
    const std::int64_t element = ref.first_element() + i;
    ref.gradient[i] = std::sin(static_cast<float>(element + 1));  // none is 0
    ref.weight[i] = std::cos(static_cast<float>(element));
    ref.m[i] = ref.v[i] = 0;
  }
}

// Ranks that have runs of a table's rows put its entries into the exchange and update its weights
// as one rank that has the whole table does.
TEST_F(OptimizerTest, RunsOfRowsCountAndChangeAsInTheWholeTable) {
  const model::Model model = rows_testing::ModelOfThreeBlocks();
  struct Result {
    std::vector<double> entries;
    std::vector<float> weights;
  };
  const auto run = [&](const layout::Section& section) {
    const auto store = ParameterStore::Create(model, section, *backend_).value();
    const ParameterRef& table = store->Layer(LayerId(0)).refs[0];
    FillByElement(table);
    std::size_t entries = 3;
    for (const model::Parameter* const each : model.AllParameters())
      entries += static_cast<std::size_t>(model::NumNormEntries(*each));
    FakeGroup pipeline(std::vector<double>(entries, 0.0));
    Optimizer optimizer = Optimizer::Create(job_, model, *store, {.pipeline = &pipeline}).value();
    EXPECT_TRUE(optimizer.NormPartial(*backend_).ok());
    EXPECT_TRUE(optimizer.Exchange(StepId(1), {}).ok());
    EXPECT_TRUE(optimizer.Update(*backend_, StepId(1), 1).ok());
    const auto sent = std::span(pipeline.sent());
    return Result{.entries = {sent.begin(), sent.begin() + 3},  // the table is the first parameter
                  .weights = {table.weight, table.weight + table.elements()}};
  };
  const auto rows = [&](std::int64_t first, std::int64_t count) {
    return rows_testing::LayOutRows(model, first, count, {LayerId(0)});
  };
  const Result whole = run(rows(0, 10000));
  for (const double entry : whole.entries) EXPECT_GT(entry, 0);
  for (const std::int64_t cut : {4096, 8192}) {
    const Result first = run(rows(0, cut)), second = run(rows(cut, 10000 - cut));
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(first.entries[i] + second.entries[i], whole.entries[i]) << i;
      EXPECT_EQ(first.entries[i] == 0, i * 4096 >= cut) << i;
    }
    std::vector<float> weights = first.weights;
    weights.insert(weights.end(), second.weights.begin(), second.weights.end());
    EXPECT_EQ(weights, whole.weights);
  }
}

}  // namespace
}  // namespace takt::train
