// SPDX-License-Identifier: Apache-2.0
#include "worker/checkpoint/state_copy.h"

#include <algorithm>
#include <span>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/checkpoint_job.h"
#include "worker/checkpoint/snapshot.h"

namespace takt::worker_checkpoint {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

class StateCopyTest : public ::testing::Test {
 protected:
  std::shared_ptr<StateCopy> CopyOf(StepId step) {
    auto copy = StateCopy::Create(job_.model(), job_.AllLayers()).value();
    const takt::testing::ModelState state = job_.StateAt(step);
    EXPECT_TRUE(copy->Take(state.Layers(job_.AllLayers()), /*threads=*/2, nullptr).ok());
    return copy;
  }
  const takt::testing::CheckpointJob job_;
};

TEST_F(StateCopyTest, ACopyIsWholeOnceItIsHashed) {
  const auto copy = CopyOf(StepId(7));
  EXPECT_EQ(copy->step(), StepId(0));
  copy->MarkWhole(StepId(7));
  EXPECT_EQ(copy->step(), StepId(7));
  const auto same = CopyOf(StepId(7));
  same->MarkWhole(StepId(7));
  for (const LayerId layer : job_.AllLayers()) {
    EXPECT_TRUE(copy->Verify(layer));
    EXPECT_EQ(copy->hash(layer), same->hash(layer));
  }
  copy->MarkBroken();
  EXPECT_EQ(copy->step(), StepId(0));
}

TEST_F(StateCopyTest, EveryParameterOfALayerHasItsPlace) {
  const auto copy = CopyOf(StepId(7));
  const takt::testing::ModelState saved = job_.StateAt(StepId(7));
  const auto same = [](std::span<const float> a, std::span<const float> b) {
    return std::ranges::equal(std::as_bytes(a), std::as_bytes(b));
  };
  for (const LayerState& layer : saved.Layers(job_.AllLayers())) {
    for (const ParameterState& state : layer.parameters) {
      const ParameterTarget place =
          PlaceIn(job_.model(), layer.layer, *state.parameter, copy->Values(layer.layer));
      EXPECT_TRUE(same(place.weight, state.weight)) << state.parameter->name;
      EXPECT_TRUE(same(place.m, state.m)) << state.parameter->name;
      EXPECT_TRUE(same(place.v, state.v)) << state.parameter->name;
    }
  }
}

// A snapshot of the state has it too, from which files are written.
TEST_F(StateCopyTest, LastUpdatesHaveTheirPlacesWhereErrorsAreFedBack) {
  model::Model model = job_.model();
  for (model::Layer& layer : model.layers) {
    for (model::Parameter& parameter : layer.parameters) {
      parameter.moments = 1;
      parameter.fed_back = parameter.shape.size() == 2;
    }
  }
  const takt::testing::ModelState saved(model, /*seed=*/7);
  std::vector<LayerState> layers = saved.Layers(job_.AllLayers());
  for (LayerState& layer : layers) {
    for (ParameterState& state : layer.parameters) state.v = {};
  }
  absl::StatusOr<Snapshot> snapshot = Snapshot::Create(layers);
  ASSERT_TRUE(snapshot.ok()) << snapshot.status();
  ASSERT_TRUE(snapshot->Take(layers, {.threads = 2}).ok());
  auto copy = StateCopy::Create(model, job_.AllLayers()).value();
  ASSERT_TRUE(copy->Take(snapshot->layers(), /*threads=*/2, nullptr).ok());
  const auto same = [](std::span<const float> a, std::span<const float> b) {
    return std::ranges::equal(std::as_bytes(a), std::as_bytes(b));
  };
  for (const LayerState& layer : layers) {
    for (const ParameterState& state : layer.parameters) {
      const ParameterTarget place =
          PlaceIn(model, layer.layer, *state.parameter, copy->Values(layer.layer));
      EXPECT_TRUE(same(place.weight, state.weight)) << state.parameter->name;
      EXPECT_TRUE(same(place.m, state.m)) << state.parameter->name;
      EXPECT_THAT(place.v, IsEmpty());
      EXPECT_EQ(state.last_update.empty(), !state.parameter->fed_back);
      EXPECT_TRUE(same(place.last_update, state.last_update)) << state.parameter->name;
    }
  }
}

TEST_F(StateCopyTest, AFlippedBitIsFoundInItsLayer) {
  const auto copy = CopyOf(StepId(7));
  copy->MarkWhole(StepId(7));
  auto* const bytes = reinterpret_cast<unsigned char*>(copy->Values(LayerId(1)).data());
  bytes[5] ^= 1U;
  EXPECT_FALSE(copy->Verify(LayerId(1)));
  EXPECT_TRUE(copy->Verify(LayerId(0)));
}

TEST_F(StateCopyTest, AStoreKeepsTheCopiesOfOneJobUntilItIsForgotten) {
  CopyStore store;
  EXPECT_THAT(store.Begin("a", "id1"), IsEmpty());
  store.Keep("id1", {CopyOf(StepId(1))});
  store.Forget("b");
  EXPECT_THAT(store.Begin("a", "id1"), SizeIs(1));  // the next generation
  store.Forget("a");
  EXPECT_THAT(store.Begin("a", "id1"), IsEmpty());
  store.Keep("id1", {CopyOf(StepId(1))});
  EXPECT_THAT(store.Begin("a", "id2"), IsEmpty());  // another job of this name
  store.Keep("id1", {CopyOf(StepId(1))});           // comes too late
  EXPECT_THAT(store.Begin("a", "id2"), IsEmpty());
}

}  // namespace
}  // namespace takt::worker_checkpoint
