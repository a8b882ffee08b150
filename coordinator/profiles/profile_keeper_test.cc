// SPDX-License-Identifier: Apache-2.0
#include "coordinator/profiles/profile_keeper.h"

#include "common/profile/profile_serde.h"
#include "common/trace/testing/synthetic_trace.h"
#include "coordinator/store/memory_store.h"
#include "gtest/gtest.h"

namespace takt::profiles {
namespace {

using model::LayerKind;

class ProfileKeeperTest : public ::testing::Test {
 protected:
  ProfileKeeperTest() : store_(store::NewMemoryStore()) { Open(); }

  // Ends the keeper, if there is one, and opens one on the same store.
  void Open(ProfileKeeperOptions options = {}) {
    keeper_.reset();
    options.clock = &clock_;
    keeper_ = ProfileKeeper::Open(store_.get(), options).value();
  }

  // A job of three ranks on one host: the embedding, two blocks, the head.
  static job::Launch LaunchOf(const std::string& job, int generation = 1) {
    job::Launch launch{.key = {job, Generation(generation)}};
    launch.plan.model = model::BuildModel({.layers = 2,
                                           .hidden = 64,
                                           .heads = 4,
                                           .kv_heads = 4,
                                           .inner = 256,
                                           .context = 32,
                                           .positions = 32,
                                           .vocab = 256},
                                          1)
                            .value();
    launch.plan.mesh.pp_size = 3;
    launch.plan.partition = {{StageId(0), PpRank(0), LayerId(0), LayerId(1)},
                             {StageId(1), PpRank(1), LayerId(1), LayerId(3)},
                             {StageId(2), PpRank(2), LayerId(3), LayerId(4)}};
    const profile::RankPlace place{
        .conditions = {.machine = "a processor", .threads = 1, .ranks_per_host = 3}, .host = "h"};
    launch.places = {place, place, place};
    return launch;
  }

  // Lets the job's generation tell of steps in which F of each stage takes so long.
  void Learn(double forward_seconds, const std::string& job = "j", int generation = 1) {
    trace::SyntheticTrace synthetic("1f1b", 3, 4, {.forward = forward_seconds});
    trace::JobTrace trace = synthetic.Get();
    trace.job = job;
    trace.generation = Generation(generation);
    keeper_->Learn(trace);
  }

  // Returns the seconds of F, or 0 if there are none.
  double Forward(LayerKind kind) const {
    const auto profile = keeper_->Read();
    for (const auto& [key, sample] : profile->layers()) {
      if (key.first.kind == kind) return sample.seconds.forward;
    }
    return 0;
  }
  bool KnowsNothing() const { return keeper_->Read()->empty(); }
  std::string Stored() { return store_->ReadProfile().value(); }
  std::string Known() const { return profile::FormatProfile(*keeper_->Read()); }

  FakeClock clock_;
  std::unique_ptr<store::Store> store_;
  std::unique_ptr<ProfileKeeper> keeper_;
};

TEST_F(ProfileKeeperTest, LearnsFromTheGenerationThatBeganLast) {
  Learn(0.010, "j", 2);
  EXPECT_TRUE(KnowsNothing()) << "nobody said where it runs";
  keeper_->Begin(LaunchOf("j", 1));
  keeper_->Begin(LaunchOf("j", 2));
  Learn(0.010, "j", 1);
  EXPECT_TRUE(KnowsNothing()) << "another generation";
  Learn(0.010, "j", 2);
  EXPECT_NEAR(Forward(LayerKind::kEmbedding), 0.010, 1e-6);
  EXPECT_NEAR(Forward(LayerKind::kGpt2Block), 0.005, 1e-6);
  EXPECT_NEAR(Forward(LayerKind::kGpt2Head), 0.010, 1e-6);
  const auto profile = keeper_->Read();
  ASSERT_EQ(profile->ranks().size(), 1u);
  EXPECT_EQ(profile->ranks().begin()->first.machine, "a processor");
}

TEST_F(ProfileKeeperTest, NewValuesAreMixedWithOldOnes) {
  keeper_->Begin(LaunchOf("j"));
  Learn(0.010);
  const auto before = keeper_->Read();
  Learn(0.020);
  EXPECT_NEAR(Forward(LayerKind::kGpt2Head), 0.012, 1e-6);
  EXPECT_NE(profile::FormatProfile(*before), Known()) << "what was read before stays";
}

TEST_F(ProfileKeeperTest, LearnsThePausesOfCheckpointsWithTheNextStep) {
  keeper_->LearnPause("j", 0.5);  // nobody said where it runs
  job::Launch launch = LaunchOf("j");
  MemoryBytes memory;
  memory[MemoryKind::kSnapshot] = 1 << 20;
  launch.plan.memory = {MemoryBytes(), memory, MemoryBytes()};
  keeper_->Begin(launch);
  keeper_->LearnPause("j", 0.25);
  EXPECT_TRUE(KnowsNothing());
  Learn(0.010);
  const auto profile = keeper_->Read();
  ASSERT_EQ(profile->snapshots().size(), 1u);
  EXPECT_DOUBLE_EQ(profile->snapshots().begin()->second, 0.25 / (1 << 20));
  Learn(0.010);  // it is learned once
  EXPECT_EQ(keeper_->Read()->snapshots(), profile->snapshots());
}

TEST_F(ProfileKeeperTest, LearnsNoLayersFromEmulatedJobs) {
  job::Launch emulated = LaunchOf("emulated");
  emulated.plan.model.config.family = model::Family::kEmulated;
  keeper_->Begin(emulated);
  Learn(0.010, "emulated");
  EXPECT_TRUE(keeper_->Read()->layers().empty());
  EXPECT_TRUE(keeper_->Read()->ranks().empty());
}

TEST_F(ProfileKeeperTest, JobsOfWhichTooLittleIsKnownAreLeftOut) {
  job::Launch old_worker = LaunchOf("old-worker");
  old_worker.places[1].conditions.machine = "";
  keeper_->Begin(LaunchOf("deleted"));
  keeper_->Forget("deleted");
  keeper_->Begin(old_worker);
  for (const char* job : {"old-worker", "deleted"}) {
    Learn(0.010, job);
    EXPECT_TRUE(KnowsNothing()) << job;
  }
  // A generation that cannot be learned from replaces one that can.
  keeper_->Begin(LaunchOf("old-worker"));
  keeper_->Begin(old_worker);
  Learn(0.010, "old-worker");
  EXPECT_TRUE(KnowsNothing());
}

TEST_F(ProfileKeeperTest, RemembersTheJobsThatBeganLast) {
  Open({.max_jobs = 2});
  for (const char* job : {"a", "b", "a", "c"}) keeper_->Begin(LaunchOf(job));
  Learn(0.010, "b");
  EXPECT_TRUE(KnowsNothing());
  Learn(0.010, "a");
  EXPECT_FALSE(KnowsNothing());
}

TEST_F(ProfileKeeperTest, IsStoredAtMostOnceInAnInterval) {
  keeper_->Begin(LaunchOf("j"));
  Learn(0.010);
  const std::string first = Known();
  EXPECT_EQ(Stored(), first);
  clock_.Advance(timeouts::kSaveProfile / 2);
  Learn(0.020);
  EXPECT_EQ(Stored(), first);
  clock_.Advance(timeouts::kSaveProfile / 2);
  Learn(0.020);
  EXPECT_NE(Known(), first);
  EXPECT_EQ(Stored(), Known());
}

TEST_F(ProfileKeeperTest, GoesOnWhereTheOneBeforeEnded) {
  keeper_->Begin(LaunchOf("j"));
  Learn(0.010);
  Learn(0.020);
  const std::string last = Known();
  EXPECT_NE(Stored(), last);
  Open();
  EXPECT_EQ(Stored(), last);
  EXPECT_EQ(Known(), last);
}

TEST_F(ProfileKeeperTest, AProfileThatCannotBeUsedIsDropped) {
  keeper_->Begin(LaunchOf("j"));
  Learn(0.010);
  v1::Profile of_another_version = profile::ToProto(*keeper_->Read());
  of_another_version.set_program_version("0.0.7");
  for (const std::string& stored :
       {of_another_version.SerializeAsString(), std::string("not a profile")}) {
    keeper_.reset();
    ASSERT_TRUE(store_->Commit({.profile = stored}).ok());
    Open();
    EXPECT_TRUE(KnowsNothing());
  }
}

TEST_F(ProfileKeeperTest, LinksBeginAnewWhenThereAreTooMany) {
  Open({.max_links = 4});
  const auto learn_over = [&](const std::string& first, const std::string& last) {
    job::Launch launch = LaunchOf("j");
    launch.places[0].host = first;
    launch.places[2].host = last;
    keeper_->Begin(launch);
    Learn(0.010);
    return keeper_->Read()->links().size();
  };
  EXPECT_EQ(learn_over("a", "h"), 2u);  // one in each direction
  EXPECT_EQ(learn_over("a", "h"), 2u);
  EXPECT_EQ(learn_over("b", "h"), 4u);
  EXPECT_EQ(learn_over("c", "d"), 4u);  // from and to "h" of both
  EXPECT_EQ(keeper_->Read()->links().begin()->first.from, "c");
  EXPECT_EQ(keeper_->Read()->layers().size(), 3u);
}

TEST_F(ProfileKeeperTest, AFullProfileBeginsAnew) {
  Open({.max_layers = 3});
  keeper_->Begin(LaunchOf("j"));
  Learn(0.010);
  Learn(0.020);
  EXPECT_NEAR(Forward(LayerKind::kGpt2Head), 0.020, 1e-6);
}

}  // namespace
}  // namespace takt::profiles
