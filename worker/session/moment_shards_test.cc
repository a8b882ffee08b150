// SPDX-License-Identifier: Apache-2.0
#include "worker/session/moment_shards.h"

#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "common/layout/parameter_layout.h"
#include "common/layout/rank_layout.h"
#include "common/model/model.h"
#include "gtest/gtest.h"
#include "tests/testing/inproc_hub.h"
#include "worker/backend/cpu/cpu_backend.h"
#include "worker/checkpoint/snapshot.h"
#include "worker/session/parameter_state.h"
#include "worker/session/told_apart_testing.h"
#include "worker/transport/channel_collective.h"

namespace takt::session {
namespace {

// An embedding, two blocks and a head, which has the embedding's table.
model::Model TiedModel(model::Precision products = model::Precision::kF32) {
  return model::BuildModel({.layers = 2,
                            .hidden = 64,
                            .heads = 2,
                            .kv_heads = 2,
                            .inner = 200,
                            .context = 8,
                            .positions = 8,
                            .vocab = 300},
                           /*microbatch=*/1, {.products = products})
      .value();
}

// One rank with all layers, or of two ranks with both copies of them.
class Sharer {
 public:
  // pp_rank: in a bidirectional pipeline of two; -1: there is one rank. frees: it keeps a shard of
  // the weights alone.
  Sharer(const model::Model& model, int replicas, int replica, int pp_rank, bool frees)
      : model_(model) {
    const bool two_copies = pp_rank >= 0;
    assignment_.mesh = {.pp_size = two_copies ? 2 : 1, .dp_size = replicas};
    assignment_.rank = assignment_.mesh.RankOf(PpRank(two_copies ? pp_rank : 0), replica);
    program::Program& program = assignment_.program;
    program.pp_rank = PpRank(two_copies ? pp_rank : 0);
    program.mirror = PpRank(two_copies ? 1 - pp_rank : -1);
    program.lanes.push_back({.kind = program::LaneKind::kReduce});
    program.body.push_back({.op = program::Op::kGatherWeights, .lane = LaneId(0)});
    std::vector<LayerId> layers;
    for (LayerId layer(0); layer.value() < static_cast<int>(model.layers.size()); ++layer)
      layers.push_back(layer);
    // Stage 0 has the first two layers, and pp rank s the primary copy of stage s.
    std::set<LayerId> second_copies;
    if (two_copies) second_copies = {LayerId(2 - 2 * pp_rank), LayerId(3 - 2 * pp_rank)};
    store_ = train::ParameterStore::Create(
                 model,
                 layout::LayOutParameters(
                     model, layers,
                     {.place = layout::ShardPlaceOf(program, replica, replicas), .frees = frees}),
                 *backend_, second_copies)
                 .value();
    for (const train::ParameterRef* const ref : store_->trained()) {
      const layout::FloatRun kept = ref->kept_run();
      for (std::int64_t i = 0; i < kept.count; ++i)
        ref->kept_weights()[i] = ValueOf(*ref->parameter, kWeight, kept.first + i);
      for (std::int64_t i = 0; i < ref->shard.count; ++i) {
        ref->m[i] = ValueOf(*ref->parameter, kFirstMoment, ref->shard.first + i);
        ref->v[i] = ValueOf(*ref->parameter, kSecondMoment, ref->shard.first + i);
      }
    }
  }

  // Returns the names of what the rank writes, after a look at its copy.
  std::vector<std::string> Copy(transport::Collective& group) {
    const MomentShards shards(assignment_, *store_, group);
    const auto live = WrittenState(*store_, assignment_.mesh.ReplicaOf(assignment_.rank),
                                   assignment_.mesh.num_replicas());
    auto snapshot = worker_checkpoint::Snapshot::Create(live).value();
    EXPECT_TRUE(snapshot.Take(live, {}).ok());
    const absl::Status joined = shards.Join(
        StepId(1),
        [&](LayerId, const model::Parameter& parameter) { return snapshot.PlaceOf(parameter); });
    EXPECT_TRUE(joined.ok()) << joined;
    std::vector<std::string> names;
    for (const worker_checkpoint::LayerState& layer : snapshot.layers()) {
      for (const worker_checkpoint::ParameterState& state : layer.parameters) {
        names.push_back(state.parameter->name);
        ExpectWhole(*state.parameter, kWeight, state.weight);
        ExpectWhole(*state.parameter, kFirstMoment, state.m);
        ExpectWhole(*state.parameter, kSecondMoment, state.v);
      }
    }
    return names;
  }

 private:
  const model::Model& model_;
  const std::unique_ptr<backend::Backend> backend_ = backend::CreateCpuBackend({}).value();
  control::Assignment assignment_;
  std::unique_ptr<train::ParameterStore> store_;
};

// Returns the names of what all ranks write.
std::multiset<std::string> WrittenBy(const model::Model& model, int replicas, int copies,
                                     bool frees = false) {
  testing::InprocHub hub;
  std::mutex mutex;
  std::multiset<std::string> written;
  std::vector<Rank> ranks;
  for (int i = 0; i < replicas * copies; ++i) ranks.push_back(Rank(i));
  std::vector<std::jthread> threads;
  for (int index = 0; index < std::ssize(ranks); ++index) {
    threads.emplace_back([&, index] {
      const auto transport =
          hub.Connect({.rank = Rank(index), .num_ranks = static_cast<int>(ranks.size())});
      const auto group = transport::CreateCollective(
          transport.get(), {.name = "sharers",
                            .ranks = ranks,
                            .index = index,
                            .large_group = transport::LargeGroup::kChain});
      ASSERT_TRUE(group.ok()) << group.status();
      Sharer sharer(model, replicas, index / copies, copies == 2 ? index % 2 : -1, frees);
      const std::vector<std::string> names = sharer.Copy(**group);
      const std::lock_guard lock(mutex);
      written.insert(names.begin(), names.end());
    });
  }
  threads.clear();  // joined
  return written;
}

TEST(MomentShards, AreWrittenWholeByOneRankWhoeverHasWhich) {
  const model::Model model = TiedModel();
  std::multiset<std::string> all;
  for (const model::Parameter* const parameter : model.AllParameters()) all.insert(parameter->name);
  for (const int replicas : {1, 2, 3, 5, 9}) {  // the last ones are a chain
    for (const int copies : {1, 2}) {
      if (replicas * copies == 1) continue;
      SCOPED_TRACE(::testing::Message() << replicas << " replicas, " << copies << " copies");
      EXPECT_EQ(WrittenBy(model, replicas, copies), all);
    }
  }
}

// In bf16 these are matrices.
TEST(MomentShards, HaveTheWeightsOfWhichRanksKeepShardsAndThePackedWhole) {
  const model::Model model = TiedModel(model::Precision::kBf16);
  const std::multiset<std::string> all = WrittenBy(TiedModel(), 2, 1);
  for (const int replicas : {2, 3}) {
    for (const int copies : {1, 2}) EXPECT_EQ(WrittenBy(model, replicas, copies), all);
  }
}

TEST(MomentShards, HaveTheWeightsOfWhichRanksKeepShards) {
  const model::Model model = TiedModel();
  const std::multiset<std::string> all = WrittenBy(model, 2, 1);
  for (const int replicas : {2, 3, 5}) {
    SCOPED_TRACE(::testing::Message() << replicas << " replicas");
    EXPECT_EQ(WrittenBy(model, replicas, 1, /*frees=*/true), all);
  }
}

}  // namespace
}  // namespace takt::session
