// SPDX-License-Identifier: Apache-2.0
// Tests the rows of the embedding that are foreseen by themselves where the vocabulary is spread.
#include <cstddef>
#include <memory>
#include <vector>

#include "common/layout/parameter_layout.h"
#include "gtest/gtest.h"
#include "worker/backend/cpu/cpu_backend.h"
#include "worker/train/optimizer.h"
#include "worker/train/parameter_store.h"
#include "worker/train/rows_testing.h"

namespace takt::train {
namespace {

// A rank with the only block, and the second of three blocks of words.
class ForeseenRows : public ::testing::Test {
 protected:
  void Make(bool foresees) {
    store_ =
        ParameterStore::Create(
            model_,
            layout::LayOutParameters(model_, {LayerId(1)}, {.spread = true, .foresees = foresees}),
            *backend_, {}, layout::LayOutRows(model_, {.first = 4096, .words = 4096}, {}, foresees))
            .value();
    float value = 0;
    for (const ParameterRef* const ref : store_->trained()) {
      for (std::int64_t i = 0; i < ref->elements(); ++i) {
        value = value > 3 ? -3 : value + 0.37F;
        ref->weight[i] = value;
        ref->gradient[i] = value * value - 1;
        if (ref->m != nullptr) ref->m[i] = 0.1F * value;
        if (ref->v != nullptr) ref->v[i] = 0.2F;
      }
    }
  }

  const ParameterRef& Table() const { return store_->Rows(LayerId(0))->refs[0]; }
  static std::vector<float> Copied(const float* values, const ParameterRef& of) {
    return {values, values + of.elements()};
  }

  const model::Model model_ =
      rows_testing::ModelOfThreeBlocks({.products = model::Precision::kBf16});
  std::unique_ptr<backend::Backend> backend_ = backend::CreateCpuBackend({.threads = 1}).value();
  std::unique_ptr<ParameterStore> store_;
};

TEST_F(ForeseenRows, AreThoseOfTheUpdateAndLeaveAllElse) {
  Make(/*foresees=*/true);
  config::JobSpec job;
  job.model = model_.config;
  job.adamw.clip_norm = 1;
  Optimizer optimizer = Optimizer::Create(job, model_, *store_, {}).value();
  const ParameterRef foreseen = store_->ForeseenRows().value();
  ASSERT_NE(foreseen.weight, Table().weight);
  EXPECT_EQ(foreseen.previous, Table().weight);
  const std::vector<float> before = Copied(Table().weight, Table()), m = Copied(Table().m, Table()),
                           v = Copied(Table().v, Table());
  // What is foreseen without the norm is as if nothing were clipped.
  ASSERT_TRUE(optimizer.ForeseeRows(*backend_, foreseen, StepId(3), 3, false).ok());
  const std::vector<float> unclipped = Copied(foreseen.weight, foreseen);
  ASSERT_TRUE(optimizer.NormPartial(*backend_).ok());
  ASSERT_TRUE(optimizer.Exchange(StepId(3), {.sum = 1, .scored = 1, .known = true}).ok());
  ASSERT_LT(optimizer.ClipFactor(), 1);
  ASSERT_TRUE(optimizer.ForeseeRows(*backend_, foreseen, StepId(3), 3, true).ok());
  const std::vector<float> clipped = Copied(foreseen.weight, foreseen);
  EXPECT_NE(clipped, unclipped);
  EXPECT_EQ(Copied(Table().weight, Table()), before);
  EXPECT_EQ(Copied(Table().m, Table()), m);
  EXPECT_EQ(Copied(Table().v, Table()), v);
  ASSERT_TRUE(optimizer.Update(*backend_, StepId(3), 3).ok());
  EXPECT_EQ(Copied(Table().weight, Table()), clipped);
}

// The lane of meetings makes them, so nothing that the compute lane does may touch them.
TEST_F(ForeseenRows, AreNotAmongTheForeseenWeightsOfStages) {
  Make(/*foresees=*/true);
  config::JobSpec job;
  job.model = model_.config;
  Optimizer optimizer = Optimizer::Create(job, model_, *store_, {}).value();
  const ParameterRef foreseen = store_->ForeseenRows().value();
  const std::vector<float> rows = Copied(foreseen.weight, foreseen);
  const float* const shown = Table().weight;
  const ParameterRef& block = store_->Layer(LayerId(1)).refs[0];
  const float* const newest = block.weight;
  ASSERT_TRUE(optimizer.Foresee(*backend_, StepId(1), 1, false).ok());
  ASSERT_TRUE(store_->PackAfterUpdate(*backend_, program::kForeseen).ok());
  EXPECT_NE(block.weight, newest);
  EXPECT_EQ(Table().weight, shown);
  EXPECT_EQ(Copied(foreseen.weight, foreseen), rows);
}

TEST_F(ForeseenRows, AreNoneWithABarrierOrWithoutWords) {
  Make(/*foresees=*/false);
  EXPECT_FALSE(store_->ForeseenRows().has_value());
  const auto no_words = ParameterStore::Create(
      model_, layout::LayOutParameters(model_, {LayerId(1)}, {.spread = true, .foresees = true}),
      *backend_);
  ASSERT_TRUE(no_words.ok());
  EXPECT_FALSE((*no_words)->ForeseenRows().has_value());
}

}  // namespace
}  // namespace takt::train
