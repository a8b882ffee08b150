// SPDX-License-Identifier: Apache-2.0
#include "worker/train/layer_shards.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <thread>
#include <vector>

#include "common/layout/packed_matrix.h"
#include "common/layout/parameter_layout.h"
#include "common/model/model.h"
#include "gtest/gtest.h"
#include "tests/testing/inproc_hub.h"
#include "worker/backend/cpu/cpu_backend.h"
#include "worker/transport/channel_collective.h"

namespace takt::train {
namespace {

// A model whose matrices have several blocks of a shard, and whose tables have two blocks of words.
// tied: the head uses the embedding's table.
model::Model SmallModel(bool tied, model::Precision products = model::Precision::kF32) {
  model::ModelConfig config{.layers = 1,
                            .hidden = 64,
                            .heads = 2,
                            .kv_heads = 2,
                            .inner = 200,
                            .context = 8,
                            .positions = 8,
                            .vocab = 5000,
                            .tied_head = tied};
  if (!tied) config.family = model::Family::kLlama;
  return model::BuildModel(config, /*microbatch=*/1, {.products = products}).value();
}

std::vector<LayerId> LayersOf(const model::Model& model) {
  std::vector<LayerId> layers;
  for (LayerId layer(0); layer.value() < static_cast<int>(model.layers.size()); ++layer)
    layers.push_back(layer);
  return layers;
}

void Randomize(unsigned seed, float* values, std::int64_t count) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> distribution(-1, 1);
  for (std::int64_t i = 0; i < count; ++i) values[i] = distribution(random);
}

// Has the parameters of one rank.
class Replica {
 public:
  // place: has moments of this shard. The default has all, for StepWithAll.
  Replica(const model::Model& model, transport::Collective& group,
          const layout::ShardPlace& place = {})
      : group_(group) {
    backend_ = backend::CreateCpuBackend({}).value();
    store_ =
        ParameterStore::Create(
            model, layout::LayOutParameters(model, LayersOf(model), {.place = place}), *backend_)
            .value();
    for (const ParameterRef* const ref : store_->trained()) {
      std::vector<float> all(static_cast<std::size_t>(ref->elements()));
      Randomize(1, all.data(), ref->elements());
      const layout::FloatRun kept = ref->kept_run();
      std::copy_n(all.begin() + kept.first, kept.count, ref->kept_weights());
    }
    packing_ = {backend_.get(), store_->gathered(),
                backend::StreamLink::Create(nullptr, nullptr).value(),
                backend::StreamLink::Create(nullptr, nullptr).value()};
    if (place.count == group.size()) {
      for (const LayerParameters& layer : store_->stage_layers())
        shards_.emplace_back(layer, group, false, packing_.room == nullptr ? nullptr : &packing_);
    }
    std::size_t entries = 0;
    for (const model::Parameter* const parameter : model.AllParameters())
      entries += static_cast<std::size_t>(model::NumNormEntries(*parameter));
    squares_.assign(entries, 0.0);
  }

  const ParameterStore& store() const { return *store_; }

  // Takes a step with gradients that differ between ranks, every rank updating everything.
  absl::Status StepWithAll(StepId step) {
    MakeGradients(step);
    for (const LayerParameters& layer : store_->stage_layers()) {
      RETURN_IF_ERROR(group_.AllReduceSum(step, layer.gradients));
      for (const ParameterRef& ref : layer.refs) {
        if (ref.norm_index < 0) continue;
        double* entry = &squares_[static_cast<std::size_t>(ref.norm_index)];
        for (const auto& [first, words] : ref.Runs()) {
          RETURN_IF_ERROR(
              backend_->Run(backend::SumOfSquares{.input = ref.gradient + first * ref.columns(),
                                                  .result = entry++,
                                                  .count = words * ref.columns()}));
        }
      }
    }
    store_->BeginUpdate();
    RETURN_IF_ERROR(Update(step, store_->trained()));
    return store_->Pack(*backend_);
  }

  // Takes the same step, every rank updating its shards.
  absl::Status StepWithShards(StepId step) {
    MakeGradients(step);
    for (LayerShards& layer : shards_) {
      RETURN_IF_ERROR(layer.ReduceGradients(step));
      std::vector<double> blocks(static_cast<std::size_t>(layer.num_blocks()));
      RETURN_IF_ERROR(layer.SumSquares(*backend_, blocks));
      RETURN_IF_ERROR(group_.AllReduceSum(step, std::span<double>(blocks)));
      layer.AddSquares(blocks, squares_);
    }
    store_->BeginUpdate();
    num_updated_ = 0;
    for (LayerShards& layer : shards_) {
      const std::vector<const ParameterRef*> parts = layer.Parts();
      for (const ParameterRef* const part : parts) num_updated_ += part->shard.count;
      RETURN_IF_ERROR(Update(step, parts));
    }
    for (LayerShards& layer : shards_) RETURN_IF_ERROR(layer.GatherWeights(step));
    return store_->Pack(*backend_);
  }

  // Returns the entries of the norm exchange in its last step.
  const std::vector<double>& squares() const { return squares_; }
  // Returns how many elements the rank updated in its last step with shards.
  std::int64_t num_updated() const { return num_updated_; }

 private:
  void MakeGradients(StepId step) {
    const auto of_rank = static_cast<unsigned>(100 * step.value() + group_.index());
    for (const LayerParameters& layer : store_->stage_layers()) {
      Randomize(of_rank + 7 * static_cast<unsigned>(layer.layer.value()), layer.gradients.data(),
                static_cast<std::int64_t>(layer.gradients.size()));
    }
  }

  absl::Status Update(StepId step, const std::vector<const ParameterRef*>& parts) {
    std::vector<backend::UpdatedTensor> tensors;
    for (const ParameterRef* const ref : parts) {
      const auto [first, count] = ref->shard;
      tensors.push_back({.parameter = ref->shard_weights(),
                         .previous = ref->shard_previous(),
                         .gradient = ref->gradient + first,
                         .m = ref->m,
                         .v = ref->v,
                         .count = count,
                         .weight_decay = ref->parameter->decayed() ? 0.1 : 0});
    }
    return backend_->Run(backend::AdamwUpdate{
        .tensors = tensors, .step = step.value(), .learning_rate = 0.01, .gradient_scale = 0.75});
  }

  transport::Collective& group_;
  std::unique_ptr<backend::Backend> backend_;
  std::unique_ptr<ParameterStore> store_;
  Packing packing_{nullptr, nullptr, backend::StreamLink::Create(nullptr, nullptr).value(),
                   backend::StreamLink::Create(nullptr, nullptr).value()};
  std::vector<LayerShards> shards_;
  std::vector<double> squares_;
  std::int64_t num_updated_ = 0;
};

// Runs `body(group)` on every rank of a group.
template <class Body>
void OnEveryRank(int size, Body body) {
  testing::InprocHub hub;
  std::vector<Rank> ranks;
  for (int i = 0; i < size; ++i) ranks.push_back(Rank(i));
  std::vector<std::thread> threads;
  for (int index = 0; index < size; ++index) {
    threads.emplace_back([&, index] {
      const auto transport = hub.Connect({.rank = ranks[index], .num_ranks = size});
      const auto group = transport::CreateCollective(
          transport.get(), {.name = "replicas", .ranks = ranks, .index = index});
      ASSERT_TRUE(group.ok()) << group.status();
      body(**group);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

void ExpectSameWeights(const ParameterStore& a, const ParameterStore& b) {
  const std::vector<const ParameterRef*> of_a = a.trained(), of_b = b.trained();
  ASSERT_EQ(of_a.size(), of_b.size());
  for (std::size_t i = 0; i < of_a.size(); ++i) {
    const auto count = static_cast<std::size_t>(of_a[i]->elements());
    EXPECT_TRUE(std::ranges::equal(std::as_bytes(std::span(of_a[i]->weight, count)),
                                   std::as_bytes(std::span(of_b[i]->weight, count))))
        << of_a[i]->parameter->name;
  }
}

template <class T>
bool SameBits(const T* a, const T* b, std::int64_t count) {
  const auto size = static_cast<std::size_t>(count);
  return std::ranges::equal(std::as_bytes(std::span(a, size)), std::as_bytes(std::span(b, size)));
}

// Expects the weights of `b` that it keeps in f32, and all that it has packed, to be those of `a`,
// which keeps everything.
void ExpectSameKept(const ParameterStore& a, const ParameterStore& b) {
  const auto of_a = a.stage_layers(), of_b = b.stage_layers();
  std::int64_t freed = 0;
  for (std::size_t layer = 0; layer < of_a.size(); ++layer) {
    for (std::size_t i = 0; i < of_a[layer].refs.size(); ++i) {
      const ParameterRef &all = of_a[layer].refs[i], &some = of_b[layer].refs[i];
      const auto [first, count] = some.kept_run();
      EXPECT_TRUE(SameBits(all.weight + first, some.kept_weights(), count)) << some.parameter->name;
      freed += some.freed ? 1 : 0;
      if (some.packed_transposed == nullptr) continue;
      const std::int64_t rows = some.parameter->shape[0], columns = some.columns();
      EXPECT_TRUE(SameBits(all.packed, some.packed, layout::PackedElements(rows, columns)))
          << some.parameter->name;
      EXPECT_TRUE(SameBits(all.packed_transposed, some.packed_transposed,
                           layout::PackedElements(columns, rows)))
          << some.parameter->name;
    }
  }
  EXPECT_GT(freed, 0);
}

TEST(LayerShards, UpdateToTheBitsOfRanksThatUpdateEverything) {
  for (const bool tied : {true, false}) {
    const model::Model model = SmallModel(tied);
    for (const int size : {1, 2, 3, 4}) {
      SCOPED_TRACE(::testing::Message() << size << " ranks, tied " << tied);
      OnEveryRank(size, [&](transport::Collective& group) {
        Replica all(model, group);
        Replica sharded(model, group, {.index = group.index(), .count = group.size()});
        for (const StepId step : {StepId(1), StepId(2), StepId(3)}) {
          ASSERT_TRUE(all.StepWithAll(step).ok());
          ASSERT_TRUE(sharded.StepWithShards(step).ok());
          EXPECT_EQ(all.squares(), sharded.squares());
          ExpectSameWeights(all.store(), sharded.store());
        }
      });
    }
  }
}

// Of a matrix, a rank has its shard in f32 and all of it packed.
TEST(LayerShards, PackTheBitsOfRanksThatKeepEverything) {
  for (const bool tied : {true, false}) {
    const model::Model model = SmallModel(tied, model::Precision::kBf16);
    for (const int size : {2, 3}) {
      SCOPED_TRACE(::testing::Message() << size << " ranks, tied " << tied);
      OnEveryRank(size, [&](transport::Collective& group) {
        Replica all(model, group);
        Replica sharded(model, group, {.index = group.index(), .count = group.size()});
        for (const StepId step : {StepId(1), StepId(2)}) {
          ASSERT_TRUE(all.StepWithAll(step).ok());
          ASSERT_TRUE(sharded.StepWithShards(step).ok());
          ExpectSameKept(all.store(), sharded.store());
        }
      });
    }
  }
}

TEST(LayerShards, ShareTheUpdateEvenly) {
  const model::Model model = SmallModel(/*tied=*/false);
  constexpr int kRanks = 4;
  std::vector<std::int64_t> updated(kRanks);
  OnEveryRank(kRanks, [&](transport::Collective& group) {
    Replica replica(model, group, {.index = group.index(), .count = group.size()});
    ASSERT_TRUE(replica.StepWithShards(StepId(1)).ok());
    updated[static_cast<std::size_t>(group.index())] = replica.num_updated();
  });
  std::int64_t sum = 0;
  // A rank may have a block more or less of each unit: the transformer block, its two tables and
  // the last norm.
  for (const std::int64_t count : updated) {
    sum += count;
    EXPECT_NEAR(static_cast<double>(count), static_cast<double>(model.num_parameters()) / kRanks,
                4.0 * layout::kShardBlock);
  }
  EXPECT_EQ(sum, model.num_parameters());
}

}  // namespace
}  // namespace takt::train
