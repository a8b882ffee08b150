// SPDX-License-Identifier: Apache-2.0
// Tests the simulation itself: that a seed means one run, that a quiet cluster keeps its promises
// whatever boundary its processes are killed at, and that a broken rule is noticed.
#include "tests/simulation/simulation.h"

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/log.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace takt::simulation {
namespace {

using ::testing::AnyOf;

std::string Tell(const Config& config, const Outcome& outcome) {
  if (!outcome.violation) return "";
  return absl::StrCat("seed ", config.seed, ": ", ToString(config), "\n",
                      outcome.violation->invariant, ": ", outcome.violation->what, "\n",
                      absl::StrJoin(outcome.last_events, "\n"));
}

class SimulationTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { InitLogging({.level = LogLevel::kError}); }

  // Breaks the rule in one seed after the other, with the fault that shows it. Returns the first
  // invariant that was violated, empty if none was.
  static std::string FindBroken(Mutation mutation, Fault fault) {
    for (std::uint64_t seed = 1; seed <= 300; ++seed) {
      Config config = QuietConfig(seed);
      config.jobs.front().steps = 40;
      config.jobs.front().every_steps = 10;
      config.fault_phase = absl::Seconds(30);
      config.mean_time[static_cast<int>(fault)] = absl::Seconds(4);
      config.mutation = mutation;
      const Outcome outcome = Simulate(config);
      if (outcome.violation) return outcome.violation->invariant;
    }
    return "";
  }
};

TEST_F(SimulationTest, TheSameSeedIsTheSameRun) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const Outcome first = Simulate(DrawConfig(seed)), second = Simulate(DrawConfig(seed));
    EXPECT_EQ(first.trace_hash, second.trace_hash) << "seed " << seed;
    EXPECT_EQ(first.events, second.events) << "seed " << seed;
  }
  EXPECT_NE(Simulate(DrawConfig(1)).trace_hash, Simulate(DrawConfig(2)).trace_hash);
}

TEST_F(SimulationTest, AQuietClusterDoesEachStepOnce) {
  const Config config = QuietConfig(1);
  const Outcome outcome = Simulate(config);
  EXPECT_EQ(Tell(config, outcome), "");
  EXPECT_EQ(outcome.steps, 6);
  EXPECT_LT(outcome.virtual_seconds, 60);
}

TEST_F(SimulationTest, TheCoordinatorMayDieAtEachBoundary) {
  Config config = QuietConfig(1);
  const std::int64_t boundaries = Simulate(config).boundaries;
  EXPECT_GT(boundaries, 20);
  for (std::int64_t at = 1; at <= boundaries && !HasFailure(); ++at) {
    SCOPED_TRACE(absl::StrCat("boundary ", at));
    config.kill_coordinator_at = at;
    const Outcome outcome = Simulate(config);
    EXPECT_EQ(Tell(config, outcome), "");
    EXPECT_EQ(outcome.steps, 6);
  }
}

TEST_F(SimulationTest, AWorkerMayDieBeforeEachCallToTheDisk) {
  Config config = QuietConfig(1);
  const std::int64_t calls = Simulate(config).disk_calls;
  EXPECT_GT(calls, 20);
  for (std::int64_t at = 1; at <= calls && !HasFailure(); ++at) {
    SCOPED_TRACE(absl::StrCat("call ", at));
    config.kill_worker_at_call = at;
    const Outcome outcome = Simulate(config);
    EXPECT_EQ(Tell(config, outcome), "");
    EXPECT_EQ(outcome.steps, 6);
  }
}

TEST_F(SimulationTest, AJobThatSavesNoFilesGoesOnFromCopiesInMemory) {
  std::int64_t from_memory = 0;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    Config config = QuietConfig(seed);
    config.jobs.front().saves = false;
    config.jobs.front().copy_every_steps = 1;
    config.jobs.front().steps = 40;
    config.mean_time[static_cast<int>(Fault::kKillWorker)] = absl::Seconds(8);
    const Outcome outcome = Simulate(config);
    EXPECT_EQ(Tell(config, outcome), "");
    from_memory += outcome.from_memory;
  }
  EXPECT_GT(from_memory, 0);
}

TEST_F(SimulationTest, AnElasticJobShrinksAndGrows) {
  for (const bool saves : {true, false}) {
    std::int64_t shrunk = 0, grown = 0, from_memory = 0;
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
      Config config = QuietConfig(seed);
      config.num_workers = 4;
      JobShape& job = config.jobs.front();
      job = {.name = "j0", .pipeline = 2, .data = 2, .least_pipeline = 1, .least_data = 1};
      job.steps = 60;
      job.step_time = absl::Milliseconds(300);
      job.saves = saves;
      job.every_steps = 2;
      job.copy_every_steps = saves ? 0 : 1;
      config.mean_time[static_cast<int>(Fault::kKillWorker)] = absl::Seconds(8);
      const Outcome outcome = Simulate(config);
      EXPECT_EQ(Tell(config, outcome), "");
      shrunk += outcome.shrunk;
      grown += outcome.grown;
      from_memory += outcome.from_memory;
    }
    EXPECT_GT(shrunk, 0);
    EXPECT_GT(grown, 0);
    EXPECT_EQ(from_memory > 0, !saves);
  }
}

TEST_F(SimulationTest, AJobThatTrainsIsAdoptedByACoordinatorThatLostItsState) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    Config config = QuietConfig(seed);
    config.jobs.front().steps = 60;
    config.lose_state_at = absl::Seconds(8);
    config.fault_phase = absl::Seconds(30);
    const Outcome outcome = Simulate(config);
    EXPECT_EQ(Tell(config, outcome), "");
    EXPECT_GE(outcome.steps, 60) << "seed " << seed;
  }
}

TEST_F(SimulationTest, ACoordinatorThatIsReadOnlyForAWhileHurtsNoJob) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    Config config = QuietConfig(seed);
    config.mean_time[static_cast<int>(Fault::kStoreFull)] = absl::Seconds(4);
    const Outcome outcome = Simulate(config);
    EXPECT_EQ(Tell(config, outcome), "");
    EXPECT_EQ(outcome.steps, 6);
  }
}

TEST_F(SimulationTest, NoticesEffectsThatComeBeforeTheCommit) {
  EXPECT_THAT(FindBroken(Mutation::kEffectsBeforeCommit, Fault::kKillCoordinator),
              AnyOf("nothing is sent before it is durable", "answers fit what is durable",
                    "acknowledged is durable"));
}

TEST_F(SimulationTest, NoticesReportsOfAnOlderGeneration) {
  EXPECT_EQ(FindBroken(Mutation::kStaleReports, Fault::kLostLink), "what counts was done");
}

TEST_F(SimulationTest, NoticesReportsThatAreNotSentAgain) {
  EXPECT_EQ(FindBroken(Mutation::kForgottenReports, Fault::kBreak), "every job makes progress");
}

TEST_F(SimulationTest, NoticesADiskThatForgetsWhatWasSynced) {
  EXPECT_THAT(FindBroken(Mutation::kForgottenSyncs, Fault::kPowerCut),
              AnyOf("the newest checkpoint stays", "acknowledged is durable"));
}

TEST_F(SimulationTest, NoticesWorkersThatDoNotComeBack) {
  EXPECT_EQ(FindBroken(Mutation::kForgottenCoordinator, Fault::kKillCoordinator),
            "every job makes progress");
}

}  // namespace
}  // namespace takt::simulation
