// SPDX-License-Identifier: Apache-2.0
// Ranks are killed in the middle of the collectives of each kind of group: of ranks that split
// layers, share sequences or experts, and of replicas that share the optimizer's state or the
// weights. The crash is seen in time, and the job continues with the losses of an undisturbed one.
// README.md lists the commands.
#include <signal.h>

#include <cstdint>
#include <iostream>
#include <map>
#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fault/small_job.h"
#include "tests/testing/cluster.h"

namespace takt {
namespace {

using testing::Cluster;
using ::testing::ContainsRegex;

constexpr char kJob[] = "j";
// A rank sends a heartbeat every second, so within this time each rank has reported where it waits.
constexpr absl::Duration kStopped = absl::Milliseconds(1300);
// The promises of docs/reliability.md, the second with a margin for a busy machine.
constexpr absl::Duration kMostUntilSeen = absl::Seconds(1), kMostUntilFree = absl::Seconds(3);

// A step takes milliseconds, so that a job does not end while the test looks at it.
constexpr char kGpt[] = "{family: gpt2, layers: 1, hidden: 32, heads: 2, context: 64, vocab: 256}";
constexpr char kDeepGpt[] =
    "{family: gpt2, layers: 4, hidden: 16, heads: 2, context: 16, vocab: 256}";
constexpr char kMixtral[] =
    "{family: mixtral, layers: 1, hidden: 32, heads: 2, kv_heads: 1, inner: 48, context: 64, "
    "vocab: 256, experts: {count: 4, per_token: 2}}";
// Ranks that share layers meet in the one, all ranks in the other.
constexpr char kNorms[] = "NORM_(PARTIAL exchange|EXCHANGE)";

// One mesh, and the names of its groups' collectives as ranks report them.
struct Kind {
  std::string name, model, parallelism;
  int ranks = 2, batch = 4;
  std::vector<std::string> collectives;  // regular expressions
};
void PrintTo(const Kind& kind, std::ostream* out) { *out << kind.name; }

// Groups have two ranks, and the job has no other ranks. So a rank that waits does so in a
// collective.
std::vector<Kind> SmallKinds() {
  return {
      {.name = "tensor",
       .model = kGpt,
       .parallelism = "pipeline: 1, tensor: 2, schedule: 1f1b",
       .collectives = {"F[0-9]+ gather", "F[0-9]+ scatter", "B[0-9]+ gather", "B[0-9]+ scatter"}},
      {.name = "context",
       .model = kGpt,
       .parallelism = "pipeline: 1, context: 2, schedule: 1f1b",
       .collectives = {"F[0-9]+ exchange", "B[0-9]+ exchange", "REDUCE_GRAD"}},
      {.name = "optimizer",
       .model = kGpt,
       .parallelism = "pipeline: 1, data: 2, shard: optimizer, schedule: 1f1b",
       .collectives = {"REDUCE_GRAD", "GATHER_WEIGHTS"}},
      {.name = "parameters",
       .model = kDeepGpt,
       .parallelism = "pipeline: 2, data: 2, schedule: interleaved-1f1b, chunks: 3, "
                      "shard: parameters, reshard_after_forward: always",
       .ranks = 4,
       .collectives = {"REDUCE_GRAD", "UNSHARD"}},
      {.name = "experts",
       .model = kMixtral,
       .parallelism = "pipeline: 1, data: 2, expert: 2, schedule: 1f1b",
       .collectives = {"F[0-9]+ exchange", "B[0-9]+ exchange", "REDUCE_GRAD"}},
  };
}

std::vector<Kind> AllKinds() {
  std::vector<Kind> kinds = SmallKinds();
  kinds.push_back({.name = "tensor_pipeline",
                   .model = kDeepGpt,
                   .parallelism = "pipeline: 2, tensor: 2, schedule: zb-v, transport: gloo",
                   .ranks = 4,
                   .collectives = {"F[0-9]+ gather", "I[0-9]+ scatter"}});
  kinds.push_back({.name = "tensor_optimizer",
                   .model = kDeepGpt,
                   .parallelism = "pipeline: 2, data: 2, tensor: 2, shard: optimizer, "
                                  "schedule: 1f1b",
                   .ranks = 8,
                   .collectives = {"F[0-9]+ gather", "B[0-9]+ scatter", "REDUCE_GRAD"}});
  kinds.push_back({.name = "tied",
                   .model = kDeepGpt,
                   .parallelism = "pipeline: 2, schedule: 1f1b, vocabulary: last",
                   .collectives = {"REDUCE_TIED"}});
  kinds.push_back({.name = "vocabulary",
                   .model = kDeepGpt,
                   .parallelism = "pipeline: 2, schedule: 1f1b, vocabulary: spread",
                   .collectives = {"SHARE", "GATHER", "RETURN"}});
  // So many ranks send their sums along a chain (worker/transport/chain_collective.h).
  kinds.push_back({.name = "chain",
                   .model = kGpt,
                   .parallelism = "pipeline: 1, data: 9, schedule: 1f1b",
                   .ranks = 9,
                   .batch = 9,
                   .collectives = {"REDUCE_GRAD"}});
  return kinds;
}

std::string Yaml(const Kind& kind, const std::string& name, std::int64_t steps, int save_every) {
  return absl::StrCat("name: ", name, "\nmodel: ", kind.model,
                      "\ndata: {train: {path: data.txt, format: bytes}, shuffle: true}"
                      "\nbatch: {global: ",
                      kind.batch, ", microbatch: 1}\nseed: 7\nsteps: ", steps,
                      "\nparallelism: {threads: 1, ", kind.parallelism,
                      "}\ncheckpoint: {directory: ", name, ", every_steps: ", save_every,
                      ", in_memory: off}\n");
}

std::string WorkerOf(const v1::Job& job, int rank) {
  for (const v1::BoundRank& bound : job.ranks()) {
    if (bound.rank() == rank) return bound.worker();
  }
  ADD_FAILURE() << "nobody holds rank " << rank << ": " << job.reason();
  return "w0";
}

// Returns whether a rank was in such a collective at the newest fault of the job.
bool FaultIsIn(const v1::Job& job, const std::string& collective) {
  for (const v1::RankStatus& rank : job.fault()) {
    const std::string place = absl::StrCat(rank.instruction(), "; ", rank.waiting_for());
    if (::testing::Value(place, ContainsRegex(collective))) return true;
  }
  return false;
}

// Starts as many workers as ranks, and a spare one.
class GroupKill : public ::testing::TestWithParam<Kind> {
 protected:
  // Returns the losses of a job to which nothing happens.
  std::vector<double> Undisturbed(std::int64_t steps) {
    cluster_.Submit(Yaml(GetParam(), "undisturbed", steps, /*save_every=*/100));
    EXPECT_EQ(cluster_.AwaitEnd("undisturbed", absl::Minutes(20)).state(), v1::JOB_STATE_SUCCEEDED);
    return testing::LossesOf(cluster_, "undisturbed");
  }

  // Kills the worker of this rank, and starts it again. Meanwhile another rank is stopped. No rank
  // gets further without that one, so all others have come to a wait when the worker dies. Returns
  // the job once it trains again.
  v1::Job KillInACollective(int victim) {
    const v1::Job before = cluster_.Job(kJob);
    const std::string killed = WorkerOf(before, victim);
    const std::string stopped = WorkerOf(before, (victim + 1) % GetParam().ranks);
    cluster_.worker(stopped).Signal(SIGSTOP);
    absl::SleepFor(kStopped);
    cluster_.Kill(cluster_.worker(killed));
    const absl::Duration start = SteadyNow();
    cluster_.worker(stopped).Signal(SIGCONT);
    ExpectToBeSeen(killed, before.generation(), start);
    cluster_.StartWorker(killed);
    return cluster_.AwaitJob(kJob, [&](const v1::Job& job) {
      const bool trains =
          job.state() == v1::JOB_STATE_RUNNING && job.generation() > before.generation();
      return trains || testing::HasEnded(job);
    });
  }

  Cluster cluster_{GetParam().ranks + 1};

 private:
  // start: when the worker died, by the steady clock.
  void ExpectToBeSeen(const std::string& worker, std::int64_t generation, absl::Duration start) {
    absl::Duration seen = absl::InfiniteDuration(), freed = absl::InfiniteDuration();
    while (freed == absl::InfiniteDuration() && SteadyNow() - start < Cluster::kPatience) {
      const v1::Job job = cluster_.Job(kJob);
      const bool anew = job.generation() != generation;
      const v1::WorkerState state = cluster_.Workers()[worker].state();
      const bool gone = state == v1::WORKER_STATE_AWAY || state == v1::WORKER_STATE_LOST;
      const absl::Duration now = SteadyNow() - start;
      if (seen == absl::InfiniteDuration() && (anew || gone)) seen = now;
      if (anew || job.ranks_size() == 0) freed = now;
      absl::SleepFor(absl::Milliseconds(5));
    }
    EXPECT_LE(seen, kMostUntilSeen) << worker;
    EXPECT_LE(freed, kMostUntilFree) << worker;
  }
};

// The kill comes between two checkpoints, far from both: a rank that saves meets others elsewhere.
TEST_P(GroupKill, InACollectiveIsSeenAndTheJobGoesOnWithTheSameLosses) {
  constexpr std::int64_t kSteps = 900;
  constexpr int kSaveEvery = 300;
  const Kind& kind = GetParam();
  const std::vector<double> undisturbed = Undisturbed(kSteps);
  cluster_.Submit(Yaml(kind, kJob, kSteps, kSaveEvery));
  const v1::Job saved = cluster_.AwaitJob(kJob, [](const v1::Job& job) {
    return job.checkpoint().step() > 0 || testing::HasEnded(job);
  });
  ASSERT_FALSE(testing::HasEnded(saved)) << saved.reason();
  const v1::Job again = KillInACollective(kind.ranks - 1);
  EXPECT_GE(again.resumed_step(), kSaveEvery) << again.reason();
  bool is_in_collective = FaultIsIn(again, kNorms);
  for (const std::string& collective : kind.collectives)
    is_in_collective = is_in_collective || FaultIsIn(again, collective);
  EXPECT_TRUE(is_in_collective) << again.DebugString();
  const v1::Job ended = cluster_.AwaitEnd(kJob);
  EXPECT_EQ(ended.state(), v1::JOB_STATE_SUCCEEDED) << ended.reason();
  EXPECT_EQ(testing::LossesOf(cluster_, kJob), undisturbed);
  cluster_.ExpectNothingLost();
}

// Kills each rank in turn, until each collective was hit.
class GroupKills : public GroupKill {};

TEST_P(GroupKills, OfEachRankInEachCollectiveLeaveTheLossesAsTheyAre) {
  constexpr int kMostKills = 100;
  constexpr std::int64_t kEndless = 1'000'000;
  const Kind& kind = GetParam();
  cluster_.Submit(Yaml(kind, kJob, kEndless, /*save_every=*/20));
  std::map<std::string, int> hits;
  v1::Job job = cluster_.AwaitStep(kJob, 10);
  for (int kills = 0; kills < kMostKills; ++kills) {
    if (kills >= kind.ranks && hits.size() == kind.collectives.size()) break;
    cluster_.AwaitStep(kJob, job.last_step().step() + 30);
    job = KillInACollective(kills % kind.ranks);
    ASSERT_FALSE(testing::HasEnded(job)) << job.reason();
    for (const std::string& collective : kind.collectives) {
      if (FaultIsIn(job, collective)) ++hits[collective];
    }
  }
  for (const std::string& collective : kind.collectives) {
    std::cout << "in " << collective << ": " << hits[collective] << " kills" << std::endl;
    EXPECT_GT(hits[collective], 0) << collective;
  }
  job = cluster_.AwaitStep(kJob, job.last_step().step() + 30);
  cluster_.Cancel(kJob);
  EXPECT_EQ(cluster_.AwaitEnd(kJob).state(), v1::JOB_STATE_CANCELLED);
  const std::vector<double> losses = testing::LossesOf(cluster_, kJob);
  EXPECT_EQ(losses, Undisturbed(static_cast<std::int64_t>(losses.size())));
  cluster_.ExpectNothingLost();
}

// Each step is saved, so that kills come while the writers of layers join the parts of others, too.
class GroupSaveKills : public GroupKill {};

TEST_P(GroupSaveKills, OfEachRankWhileEachStepIsSavedLeaveTheLossesAsTheyAre) {
  constexpr int kMostKills = 4;
  constexpr std::int64_t kEndless = 1'000'000;
  const Kind& kind = GetParam();
  cluster_.Submit(Yaml(kind, kJob, kEndless, /*save_every=*/1));
  v1::Job job = cluster_.AwaitStep(kJob, 10);
  for (int kills = 0; kills < kMostKills; ++kills) {
    cluster_.AwaitStep(kJob, job.last_step().step() + 10);
    job = KillInACollective(kills % kind.ranks);
    ASSERT_FALSE(testing::HasEnded(job)) << job.reason();
    EXPECT_GT(job.resumed_step(), 0);
  }
  job = cluster_.AwaitStep(kJob, job.last_step().step() + 10);
  cluster_.Cancel(kJob);
  EXPECT_EQ(cluster_.AwaitEnd(kJob).state(), v1::JOB_STATE_CANCELLED);
  const std::vector<double> losses = testing::LossesOf(cluster_, kJob);
  EXPECT_EQ(losses, Undisturbed(static_cast<std::int64_t>(losses.size())));
  cluster_.ExpectNothingLost();
}

const auto kName = [](const auto& info) { return info.param.name; };

INSTANTIATE_TEST_SUITE_P(Each, GroupKill, ::testing::ValuesIn(SmallKinds()), kName);

// `tests/long.sh groups` runs it.
INSTANTIATE_TEST_SUITE_P(DISABLED_Whole, GroupSaveKills, ::testing::ValuesIn(AllKinds()), kName);
INSTANTIATE_TEST_SUITE_P(OfOptimizer, GroupSaveKills, ::testing::Values(SmallKinds()[2]), kName);
INSTANTIATE_TEST_SUITE_P(DISABLED_Whole, GroupKills, ::testing::ValuesIn(AllKinds()), kName);

}  // namespace
}  // namespace takt
