// SPDX-License-Identifier: Apache-2.0
#include "worker/session/spread_tables.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/layout/parameter_layout.h"
#include "common/layout/rank_layout.h"
#include "common/mesh/vocabulary_split.h"
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

constexpr int kVocab = 10000;  // three blocks

model::Model ModelOf(model::Family family) {
  model::ModelConfig config{.family = family,
                            .layers = 1,
                            .hidden = 4,
                            .heads = 1,
                            .kv_heads = 1,
                            .inner = 16,
                            .context = 3,
                            .positions = 3,
                            .vocab = kVocab};
  if (family == model::Family::kLlama) {
    config.head_size = 4;
    config.tied_head = false;
  }
  return model::BuildModel(config, /*microbatch=*/1).value();
}

// A rank of a pipeline of two: the first has the embedding and the block, the second the head.
// Several replicas share the optimizer's state.
class RankOfTwo {
 public:
  RankOfTwo(const model::Model& model, const mesh::VocabularyEnds& ends, int pp_rank,
            int replica = 0, int replicas = 1)
      : model_(model) {
    const LayerId head(2);
    assignment_.mesh = {.pp_size = 2, .dp_size = replicas};
    assignment_.rank = assignment_.mesh.RankOf(PpRank(pp_rank), replica);
    assignment_.program.pp_rank = PpRank(pp_rank);
    if (replicas > 1) assignment_.program.body.push_back({.op = program::Op::kGatherWeights});
    const layout::ShardPlace place = layout::ShardPlaceOf(assignment_.program, replica, replicas);
    assignment_.partition = {{StageId(0), PpRank(0), LayerId(0), head},
                             {StageId(1), PpRank(1), head, LayerId(3)}};
    assignment_.vocabulary_ends = ends;
    const std::vector<LayerId> layers =
        pp_rank == 0 ? std::vector<LayerId>{LayerId(0), LayerId(1)} : std::vector<LayerId>{head};
    store_ = train::ParameterStore::Create(
                 model, layout::LayOutParameters(model, layers, {.spread = true, .place = place}),
                 *backend_, {},
                 layout::LayOutRows(model, mesh::WordsOf(ends, PpRank(pp_rank), kVocab), place))
                 .value();
    for (const train::ParameterRef* const ref : store_->trained()) {
      for (std::int64_t i = 0; i < ref->elements(); ++i)
        ref->weight[i] = ValueOf(*ref->parameter, kWeight, ref->first_element() + i);
      for (std::int64_t i = 0; i < ref->shard.count; ++i) {
        const std::int64_t element = ref->first_element() + ref->shard.first + i;
        ref->m[i] = ValueOf(*ref->parameter, kFirstMoment, element);
        ref->v[i] = ValueOf(*ref->parameter, kSecondMoment, element);
      }
    }
  }

  // Returns the names of what the rank writes, after a look at its copy. sharers: null if there is
  // one replica.
  std::vector<std::string> Copy(transport::Collective& group,
                                transport::Collective* sharers = nullptr) {
    std::optional<MomentShards> moments;
    if (sharers != nullptr) moments.emplace(assignment_, *store_, *sharers);
    const SpreadTables tables(assignment_, model_, *store_, group,
                              moments.has_value() ? &*moments : nullptr);
    std::vector<LayerState> live = WrittenState(
        *store_, assignment_.mesh.ReplicaOf(assignment_.rank), assignment_.mesh.num_replicas());
    tables.AddWritten(live);
    auto snapshot = worker_checkpoint::Snapshot::Create(live).value();
    EXPECT_TRUE(snapshot.Take(live, {}).ok());
    if (moments.has_value()) {
      const absl::Status whole = moments->Join(
          StepId(1),
          [&](LayerId, const model::Parameter& parameter) { return snapshot.PlaceOf(parameter); });
      EXPECT_TRUE(whole.ok()) << whole;
    }
    const absl::Status joined = tables.Join(StepId(1), snapshot);
    EXPECT_TRUE(joined.ok()) << joined;
    std::vector<std::string> names;
    for (const LayerState& layer : snapshot.layers()) {
      for (const ParameterState& state : layer.parameters) {
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

TEST(SpreadTables, AreWrittenWholeByOneRankWhoeverHasWhichRows) {
  for (const model::Family family : {model::Family::kGpt2, model::Family::kLlama}) {
    const model::Model model = ModelOf(family);
    std::multiset<std::string> all;
    for (const model::Parameter* parameter : model.AllParameters()) all.insert(parameter->name);
    for (const mesh::VocabularyEnds& ends : {mesh::VocabularyEnds{1, 3}, {0, 3}, {3, 3}}) {
      SCOPED_TRACE(::testing::PrintToString(ends));
      testing::InprocHub hub;
      std::mutex mutex;
      std::multiset<std::string> written;
      std::vector<std::jthread> threads;
      for (int index = 0; index < 2; ++index) {
        threads.emplace_back([&, index] {
          const auto transport = hub.Connect({.rank = Rank(index), .num_ranks = 2});
          const auto group = transport::CreateCollective(
              transport.get(), {.name = "vocabulary", .ranks = {Rank(0), Rank(1)}, .index = index});
          ASSERT_TRUE(group.ok()) << group.status();
          const std::vector<std::string> names = RankOfTwo(model, ends, index).Copy(**group);
          const std::lock_guard lock(mutex);
          written.insert(names.begin(), names.end());
        });
      }
      threads.clear();  // joined
      EXPECT_EQ(written, all);
    }
  }
}

TEST(SpreadTables, AreWrittenWholeWhereReplicasShareTheOptimizersState) {
  constexpr int kReplicas = 3;
  const model::Model model = ModelOf(model::Family::kGpt2);
  std::multiset<std::string> all;
  for (const model::Parameter* parameter : model.AllParameters()) all.insert(parameter->name);
  for (const mesh::VocabularyEnds& ends : {mesh::VocabularyEnds{1, 3}, {0, 3}, {3, 3}}) {
    SCOPED_TRACE(::testing::PrintToString(ends));
    testing::InprocHub hub;
    std::mutex mutex;
    std::multiset<std::string> written;
    std::vector<std::jthread> threads;
    const mesh::Mesh mesh{.pp_size = 2, .dp_size = kReplicas};
    for (int rank = 0; rank < mesh.size(); ++rank) {
      threads.emplace_back([&, rank] {
        const auto transport = hub.Connect({.rank = Rank(rank), .num_ranks = mesh.size()});
        const auto open = [&](mesh::Group kind) {
          const std::vector<Rank> ranks = mesh::RanksOf(mesh, kind, Rank(rank));
          const auto self = std::ranges::find(ranks, Rank(rank));
          return transport::CreateCollective(
              transport.get(),
              {.name = absl::StrCat(std::string(mesh::NameOf(kind)), ranks.front().value()),
               .ranks = ranks,
               .index = static_cast<int>(self - ranks.begin())});
        };
        const auto sharers = open(mesh::Group::kReplicas);
        const auto group = open(mesh::Group::kVocabulary);
        ASSERT_TRUE(sharers.ok() && group.ok());
        RankOfTwo one(model, ends, rank / kReplicas, rank % kReplicas, kReplicas);
        const std::vector<std::string> names = one.Copy(**group, sharers->get());
        const std::lock_guard lock(mutex);
        written.insert(names.begin(), names.end());
      });
    }
    threads.clear();  // joined
    EXPECT_EQ(written, all);
  }
}

}  // namespace
}  // namespace takt::session
