// SPDX-License-Identifier: Apache-2.0
#include "worker/session/split_state.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "common/base/status.h"
#include "common/layout/parameter_layout.h"
#include "common/model/vocabulary.h"
#include "gtest/gtest.h"
#include "tests/testing/inproc_hub.h"
#include "worker/backend/cpu/cpu_backend.h"
#include "worker/session/told_apart_testing.h"
#include "worker/transport/channel_collective.h"

namespace takt::session {
namespace {

using worker_checkpoint::LayerState;
using worker_checkpoint::ParameterState;

constexpr int kLayers = 4;  // embedding, two blocks, head

model::ModelConfig ConfigOf(model::Family family) {
  model::ModelConfig config{.family = family,
                            .layers = 2,
                            .hidden = 8,
                            .heads = 4,
                            .kv_heads = 4,
                            .inner = 12,
                            .context = 8,
                            .positions = 8,
                            .vocab = 2 * static_cast<int>(model::kVocabularyBlock) + 3};
  if (family == model::Family::kGpt2) return config;
  config.kv_heads = 2;
  config.head_size = 2;
  config.tied_head = false;
  return config;
}

// A rank of those that split all layers of a model.
class SplitRank {
 public:
  SplitRank(model::Family family, const model::TensorShare& share)
      : model_(model::BuildModel(ConfigOf(family), /*microbatch=*/1, {}, share).value()) {
    assignment_.mesh = {.tp_size = share.size};
    assignment_.rank = Rank(share.index);
    assignment_.partition = {{StageId(0), PpRank(0), LayerId(0), LayerId(kLayers)}};
    std::vector<LayerId> layers;
    for (LayerId layer(0); layer.value() < kLayers; ++layer) layers.push_back(layer);
    store_ =
        train::ParameterStore::Create(model_, layout::LayOutParameters(model_, layers), *backend_)
            .value();
    for (const train::ParameterRef* const ref : store_->trained()) {
      const auto fill = [ref](const model::ElementRun& run) {
        for (std::int64_t i = 0; i < run.count; ++i) {
          ref->weight[run.here + i] = ValueOf(*ref->parameter, kWeight, run.whole + i);
          ref->m[run.here + i] = ValueOf(*ref->parameter, kFirstMoment, run.whole + i);
          ref->v[run.here + i] = ValueOf(*ref->parameter, kSecondMoment, run.whole + i);
        }
        return absl::OkStatus();
      };
      EXPECT_TRUE((ref->parameter->by_word
                       ? fill({.whole = ref->first_element(), .count = ref->elements()})
                       : model::ForEachRun(*ref->parameter, fill))
                      .ok());
    }
  }

  // Returns the names of what the rank writes, after a look at its copy.
  std::vector<std::string> Copy(transport::Collective* group) {
    const SplitState state(assignment_, model_, *store_, group);
    const std::vector<LayerState> live = state.WrittenState();
    auto snapshot = worker_checkpoint::Snapshot::Create(live).value();
    EXPECT_TRUE(snapshot.Take(live, {}).ok());
    const absl::Status joined = state.Join(StepId(1), snapshot);
    EXPECT_TRUE(joined.ok()) << joined;
    std::vector<std::string> names;
    for (const LayerState& layer : snapshot.layers()) {
      for (const ParameterState& each : layer.parameters) {
        names.push_back(each.parameter->name);
        ExpectWhole(*each.parameter, kWeight, each.weight);
        ExpectWhole(*each.parameter, kFirstMoment, each.m);
        ExpectWhole(*each.parameter, kSecondMoment, each.v);
      }
    }
    return names;
  }

 private:
  const model::Model model_;
  const std::unique_ptr<backend::Backend> backend_ = backend::CreateCpuBackend({}).value();
  control::Assignment assignment_;
  std::unique_ptr<train::ParameterStore> store_;
};

TEST(SplitState, IsWrittenWholeByOneRankWhoeverHasWhichPieces) {
  for (const model::Family family : {model::Family::kGpt2, model::Family::kLlama}) {
    const model::Model whole = model::BuildModel(ConfigOf(family), /*microbatch=*/1).value();
    std::multiset<std::string> all;
    for (const model::Parameter* parameter : whole.AllParameters()) all.insert(parameter->name);
    for (const int size : {1, 2, 4}) {
      SCOPED_TRACE(size);
      testing::InprocHub hub;
      std::mutex mutex;
      std::multiset<std::string> written;
      std::vector<Rank> ranks;
      for (int index = 0; index < size; ++index) ranks.push_back(Rank(index));
      std::vector<std::jthread> threads;
      for (int index = 0; index < size; ++index) {
        threads.emplace_back([&, index] {
          const auto transport = hub.Connect({.rank = Rank(index), .num_ranks = size});
          std::unique_ptr<transport::Collective> group;
          if (size > 1) {
            auto created = transport::CreateCollective(
                transport.get(), {.name = "norms", .ranks = ranks, .index = index});
            ASSERT_TRUE(created.ok()) << created.status();
            group = *std::move(created);
          }
          SplitRank rank(family, {.size = size, .index = index, .leaves = 4});
          const std::vector<std::string> names = rank.Copy(group.get());
          const std::lock_guard lock(mutex);
          written.insert(names.begin(), names.end());
        });
      }
      threads.clear();  // joined
      EXPECT_EQ(written, all);
    }
  }
}

}  // namespace
}  // namespace takt::session
