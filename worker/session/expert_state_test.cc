// SPDX-License-Identifier: Apache-2.0
#include "worker/session/expert_state.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "common/base/status.h"
#include "common/layout/parameter_layout.h"
#include "gtest/gtest.h"
#include "tests/testing/inproc_hub.h"
#include "worker/backend/cpu/cpu_backend.h"
#include "worker/session/parameter_state.h"
#include "worker/session/told_apart_testing.h"
#include "worker/transport/channel_collective.h"

namespace takt::session {
namespace {

using worker_checkpoint::LayerState;
using worker_checkpoint::ParameterState;

constexpr int kLayers = 4;  // embedding, two blocks, head

model::ModelConfig Config() {
  return {.family = model::Family::kMixtral,
          .layers = 2,
          .hidden = 8,
          .heads = 2,
          .kv_heads = 1,
          .head_size = 4,
          .inner = 6,
          .context = 8,
          .positions = 8,
          .vocab = 11,
          .tied_head = false,
          .mixture = model::Mixture{.experts = 4,
                                    .chosen = 2,
                                    .inner = 6,
                                    .dense_blocks = {},
                                    .scores = model::RouterScores::kSigmoid}};
}

// A rank of a job of so many replicas, of which `share.size` neighbours share experts.
class ExpertRank {
 public:
  ExpertRank(int replicas, int dp_rank, const model::ExpertShare& share)
      : model_(model::BuildModel(Config(), /*microbatch=*/1, {}, {}, 1, share).value()) {
    assignment_.mesh = {.dp_size = replicas};
    assignment_.rank = Rank(dp_rank);
    assignment_.partition = {{StageId(0), PpRank(0), LayerId(0), LayerId(kLayers)}};
    std::vector<LayerId> layers;
    for (LayerId layer(0); layer.value() < kLayers; ++layer) layers.push_back(layer);
    store_ =
        train::ParameterStore::Create(model_, layout::LayOutParameters(model_, layers), *backend_)
            .value();
    for (const train::ParameterRef* const ref : store_->trained()) {
      for (std::int64_t i = 0; i < ref->elements(); ++i) {
        ref->weight[i] = ValueOf(*ref->parameter, kWeight, i);
        ref->m[i] = ValueOf(*ref->parameter, kFirstMoment, i);
        ref->v[i] = ValueOf(*ref->parameter, kSecondMoment, i);
      }
    }
  }

  // Returns the names of what the rank writes, in order, after a look at its copy.
  std::vector<std::string> Copy(transport::Collective& group) {
    const ExpertState state(assignment_, model_, *store_, group);
    const mesh::Mesh& mesh = assignment_.mesh;
    std::vector<LayerState> live =
        WrittenState(*store_, mesh.ReplicaOf(assignment_.rank), mesh.num_replicas());
    state.AddAway(live);
    auto snapshot = worker_checkpoint::Snapshot::Create(live).value();
    EXPECT_TRUE(snapshot.Take(live, {}).ok());
    const absl::Status joined = state.Join(StepId(1), snapshot);
    EXPECT_TRUE(joined.ok()) << joined;
    std::vector<std::string> names;
    for (const LayerState& layer : snapshot.layers()) {
      const auto& parameters = model_.layers[layer.layer.value()].parameters;
      EXPECT_EQ(layer.parameters.size(), parameters.size());
      for (std::size_t i = 0; i < layer.parameters.size(); ++i) {
        const ParameterState& each = layer.parameters[i];
        EXPECT_EQ(each.parameter, &parameters[i]);
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

TEST(ExpertState, IsWrittenWholeByOneRankWhoeverHasWhichExperts) {
  const model::Model whole = model::BuildModel(Config(), /*microbatch=*/1).value();
  std::multiset<std::string> all;
  for (const model::Parameter* parameter : whole.AllParameters()) all.insert(parameter->name);
  for (const int replicas : {2, 4}) {
    for (const int size : {2, 4}) {
      if (size > replicas) continue;
      SCOPED_TRACE(size);
      testing::InprocHub hub;
      std::mutex mutex;
      std::multiset<std::string> written;
      std::vector<std::jthread> threads;
      for (int dp_rank = 0; dp_rank < replicas; ++dp_rank) {
        threads.emplace_back([&, dp_rank] {
          const auto transport = hub.Connect({.rank = Rank(dp_rank), .num_ranks = replicas});
          const int first = dp_rank / size * size;
          std::vector<Rank> ranks;
          for (int i = 0; i < size; ++i) ranks.emplace_back(first + i);
          auto group = transport::CreateCollective(
              transport.get(), {.name = "norms", .ranks = ranks, .index = dp_rank - first});
          ASSERT_TRUE(group.ok()) << group.status();
          ExpertRank rank(replicas, dp_rank, {.size = size, .index = dp_rank - first});
          const std::vector<std::string> names = rank.Copy(**group);
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
